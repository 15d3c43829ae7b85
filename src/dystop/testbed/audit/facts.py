"""The facts that the offline checker reads, and how they are read from the files of a run."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError
from dystop.foreign_files import MODEL_BYTES, read_bounded
from dystop.testbed.coordinator.conduct.incidents import IncidentEntry, entry_from_json
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import INCIDENT, read_blob
from dystop.testbed.worker.checkpoint import decode_state
from dystop.testbed.worker.history import HISTORY_FILE, LogLine, read_event_log
from dystop.types import ControlState

STATE_FILE = "state.db"

Pair = tuple[int, int]  # (dst, src): dst receives from src
Rows = Callable[[str], Iterable[Any]]  # rows of a table of the ledger, by key


@dataclass(frozen=True)
class Planned:
    """A plan as it was committed."""

    round: int
    epoch: int
    active: frozenset[int]
    ordered: frozenset[
        int
    ]  # nodes with an order: active ones, and those that only aggregate or receive


@dataclass(frozen=True)
class StateFacts:
    """Staleness, queues and pull counts as the coordinator stored them after a step."""

    staleness: tuple[int, ...]
    queue: tuple[float, ...]
    pulls: Mapping[Pair, int]


@dataclass(frozen=True)
class Closed:
    """The closing of a round."""

    round: int
    done: frozenset[int]  # ordered nodes that had confirmed
    pulled: tuple[Pair, ...]  # pulls (not pushes) that had arrived
    present: frozenset[int]  # workers that took part when the round was planned
    state: StateFacts | None = None


@dataclass(frozen=True)
class LateReport:
    """A report that arrived after its round was closed."""

    round: int
    node: int
    pulled: tuple[Pair, ...]
    state: StateFacts | None = None


@dataclass(frozen=True)
class RunFacts:
    """Everything that the checker reads."""

    workers: int
    bound: float | None  # of the virtual queues; None: they stay empty
    planned: Sequence[Planned]
    outcomes: Sequence[tuple[int, int, str]]  # (round, node, outcome), all that were stored
    steps: Sequence[Closed | LateReport]  # in the order in which they were committed
    event_logs: Mapping[int, Sequence[LogLine]]  # `history.jsonl` of each node
    freeze: bool = True  # the staleness of absent workers does not grow
    queues: bool = True  # whether the bound is known
    unfinished: frozenset[int] = frozenset()  # rounds still open at the end
    # By node: rounds whose reports were not acknowledged when the run ended.
    unacknowledged: Mapping[int, frozenset[int]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)  # of the nodes
    incidents: Sequence[IncidentEntry] = ()  # what the operator should know; no broken guarantee


def facts_of(
    rows: Rows,
    event_logs: Mapping[int, Sequence[LogLine]],
    unacknowledged: Mapping[int, frozenset[int]],
) -> RunFacts:
    """Return the facts of a run.

    Args:
        rows: `Ledger.rows`.
        event_logs: Lines of each node's `history.jsonl`.
        unacknowledged: Rounds whose reports each node still has in its checkpoint.
    """
    meta = {line.key: line.value for line in rows("meta")}
    rounds = [(line, read_blob(line.plan)) for line in rows("rounds")]
    bound = meta.get("queue_bound")
    return RunFacts(
        workers=len(rounds[0][1]["view"].alive) if rounds else 0,
        bound=None if bound in (None, "None") else float(bound or 0),
        planned=_planned(rows, rounds),
        outcomes=[(o.round, o.node, o.outcome) for o in rows("orders") if o.outcome is not None],
        steps=_steps(rows, rounds),
        event_logs=event_logs,
        freeze=meta.get("away", "freeze") == "freeze",
        queues=bound is not None,
        unfinished=frozenset(line.round for line, _ in rounds if line.closed_s is None),
        unacknowledged=unacknowledged,
        names={node: name for name, node in _node_numbers(rows).items()},
        incidents=[
            entry_from_json(line.value) for line in rows("kept") if line.key.startswith(INCIDENT)
        ],
    )


def _planned(rows: Rows, rounds: Sequence[tuple[Any, Any]]) -> list[Planned]:
    ordered: dict[int, set[int]] = {}
    for order in rows("orders"):
        ordered.setdefault(order.round, set()).add(order.node)
    return [
        Planned(
            round=line.round,
            epoch=line.epoch,
            active=frozenset(kept["plan"].active.tolist()),
            ordered=frozenset(ordered.get(line.round, ())),
        )
        for line, kept in rounds
    ]


def _steps(rows: Rows, rounds: Sequence[tuple[Any, Any]]) -> list[Closed | LateReport]:
    """Return closings and late reports in the order in which they took effect."""
    found = [*_closings(rows, rounds), *_late_reports(rows)]
    return [step for _, step in sorted(found, key=lambda item: item[0])]


Ordered = tuple[tuple[int, int, int], Closed | LateReport]


def _closings(rows: Rows, rounds: Sequence[tuple[Any, Any]]) -> Iterator[Ordered]:
    done: dict[int, set[int]] = {}
    for order in rows("orders"):
        if order.outcome == "DONE":
            done.setdefault(order.round, set()).add(order.node)
    reports = {
        (r.round, r.node): json.loads(r.json)
        for r in rows("reports")
        if r.kind == "mixed" and not r.late
    }
    for line, kept in rounds:
        if line.closed_s is None:
            continue
        confirmed = frozenset(done.get(line.round, ()))
        reports_of = {i: reports[line.round, i] for i in confirmed if (line.round, i) in reports}
        step = Closed(
            round=line.round,
            done=confirmed,
            pulled=tuple(_pulled(kept["plan"].links, reports_of)),
            present=frozenset(kept["view"].alive.nonzero()[0].tolist()),
            state=_state_facts(line.books),
        )
        yield (line.closed_seq, 1, line.round), step


def _pulled(links: Any, reports_of: Mapping[int, Any]) -> Iterator[Pair]:
    """Yield the pulls that arrived; a background pull counts unless it is known to have failed."""
    for k, (dst, src) in enumerate(zip(links.dst.tolist(), links.src.tolist(), strict=True)):
        if dst not in reports_of or links.pushed[k]:
            continue
        where, report = (int(links.stage[k]), src), reports_of[dst]
        used = {(u["stage"], u["node"]) for u in report.get("used", ())}
        refused = {(r["stage"], r["node"]) for r in report.get("rejected", ())}
        if where in used or (links.background[k] and where not in refused):
            yield dst, src


def _late_reports(rows: Rows) -> Iterator[Ordered]:
    pulls = {(o.round, o.node): {tuple(p) for p in json.loads(o.pulls)} for o in rows("orders")}
    books = {line.seq: line.books for line in rows("lates")}
    for r in rows("reports"):
        if r.kind != "mixed" or not r.late:
            continue
        used = json.loads(r.json).get("used", ())
        ordered = pulls[r.round, r.node]
        pairs = [(r.node, u["node"]) for u in used if (u["stage"], u["node"]) in ordered]
        yield (
            (r.seq, 0, r.round),
            LateReport(r.round, r.node, tuple(pairs), _state_facts(books.get(r.seq))),
        )


def _state_facts(blob: bytes | None) -> StateFacts | None:
    if blob is None:
        return None
    books: ControlState = read_blob(blob)
    pulls, n = books.pulls, books.pulls.n
    return StateFacts(
        staleness=tuple(books.staleness.tolist()),
        queue=tuple(books.queue.tolist()),
        pulls={
            divmod(k, n): c for k, c in zip(pulls.keys.tolist(), pulls.counts.tolist(), strict=True)
        },
    )


def read_facts(folder: Path) -> RunFacts:
    """Return the facts of a finished or interrupted run from its folder.

    Raises:
        RunFolderError: There is no `state.db`, it is damaged, or a coordinator is running.
    """
    found = sorted(folder.rglob(STATE_FILE))
    if not found:
        raise RunFolderError(
            f"{folder}: no {STATE_FILE} below it; give the folder of a testbed run"
        )
    ledger = SqliteLedger(found[0])
    try:
        event_logs, unacknowledged = _nodes(folder, _node_numbers(ledger.rows))
        return facts_of(ledger.rows, event_logs, unacknowledged)
    finally:
        ledger.close()


def _node_numbers(rows: Rows) -> dict[str, int]:
    return {line.name: line.node for line in rows("workers")}


def _nodes(
    folder: Path, numbers: Mapping[str, int]
) -> tuple[dict[int, list[LogLine]], dict[int, frozenset[int]]]:
    """Return event logs and unacknowledged rounds; the folder of a node has its name."""
    event_logs: dict[int, list[LogLine]] = {}
    unacknowledged: dict[int, frozenset[int]] = {}
    for path in sorted(folder.rglob(HISTORY_FILE)):
        node = numbers.get(path.parent.name)
        if node is not None:
            event_logs[node] = read_event_log(path)
            unacknowledged[node] = _unacknowledged_rounds(path.parent)
    return event_logs, unacknowledged


def _unacknowledged_rounds(home: Path) -> frozenset[int]:
    """Return the rounds of the reports in a checkpoint; none without a readable one."""
    for path in sorted(home.glob("*.safetensors")):
        with suppress(OSError, ValueError):
            state = decode_state(read_bounded(path, MODEL_BYTES))
            return frozenset(r.round for r in state.reports if r.kind == "mixed")
    return frozenset()
