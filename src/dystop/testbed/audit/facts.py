"""What is left of a run, as the offline checker wants it: plain facts, no arrays, no machine."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import read_blob
from dystop.testbed.worker.checkpoint import decode_state
from dystop.testbed.worker.history import HISTORY_FILE, LogLine, read_event_log
from dystop.types import ControlState

Pair = tuple[int, int]  # (dst, src): dst receives from src


@dataclass(frozen=True)
class Planned:
    """A plan as it was committed."""

    round: int
    epoch: int
    active: frozenset[int]
    ordered: frozenset[int]  # who got an order: the active ones and those that only mix or receive


@dataclass(frozen=True)
class Book:
    """The coordinator's books as they were stored after a step."""

    staleness: tuple[int, ...]
    queue: tuple[float, ...]
    pulls: Mapping[Pair, int]


@dataclass(frozen=True)
class Closed:
    """A round was closed."""

    round: int
    done: frozenset[int]  # ordered nodes that had confirmed by then
    pulled: tuple[Pair, ...]  # pulls (not pushes) that had arrived by then
    present: frozenset[int]  # workers that took part when the round was planned
    book: Book | None = None


@dataclass(frozen=True)
class CameLate:
    """A report came in after its round was closed."""

    round: int
    node: int
    pulled: tuple[Pair, ...]
    book: Book | None = None


@dataclass(frozen=True)
class RunFacts:
    """All that the checker looks at."""

    workers: int
    bound: float | None  # of the virtual queues; None: they stay empty
    planned: Sequence[Planned]
    outcomes: Sequence[tuple[int, int, str]]  # (round, node, ending), every one ever stored
    steps: Sequence[Closed | CameLate]  # in the order in which they were committed
    diaries: Mapping[int, Sequence[LogLine]]  # `history.jsonl` of each node
    freeze: bool = True  # staleness of absent workers stands still
    queues: bool = True  # whether the bound is known
    unfinished: frozenset[int] = frozenset()  # rounds still open at the end
    # rounds whose reports were not acknowledged when the run ended, by node
    unheard: Mapping[int, frozenset[int]] = field(default_factory=dict)


# MERGED: From what a run has left on the disk to the facts that the checker looks at.


STATE_FILE = "state.db"

Rows = Callable[[str], Iterable[Any]]  # lines of a table of the ledger, by key


def story_of(
    rows: Rows, diaries: Mapping[int, Sequence[LogLine]], unheard: Mapping[int, frozenset[int]]
) -> RunFacts:
    """The story of a run.

    Args:
        rows: `Ledger.rows`.
        diaries: Lines of each node's `history.jsonl`.
        unheard: Rounds whose reports each node still has in its checkpoint.
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
        diaries=diaries,
        freeze=meta.get("away", "freeze") == "freeze",
        queues=bound is not None,
        unfinished=frozenset(line.round for line, _ in rounds if line.closed_s is None),
        unheard=unheard,
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


def _steps(rows: Rows, rounds: Sequence[tuple[Any, Any]]) -> list[Closed | CameLate]:
    """Closings and late reports, in the order in which they took effect."""
    found = [*_closings(rows, rounds), *_late_reports(rows)]
    return [step for _, step in sorted(found, key=lambda item: item[0])]


Placed = tuple[tuple[int, int, int], Closed | CameLate]


def _closings(rows: Rows, rounds: Sequence[tuple[Any, Any]]) -> Iterator[Placed]:
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
        heard = {i: reports[line.round, i] for i in confirmed if (line.round, i) in reports}
        step = Closed(
            round=line.round,
            done=confirmed,
            pulled=tuple(_pulled(kept["plan"].links, heard)),
            present=frozenset(kept["view"].alive.nonzero()[0].tolist()),
            book=_book(line.books),
        )
        yield (line.closed_seq, 1, line.round), step


def _pulled(links: Any, heard: Mapping[int, Any]) -> Iterator[Pair]:
    """Pulls that arrived; one that nobody waits for counts unless it is known to have failed."""
    for k, (dst, src) in enumerate(zip(links.dst.tolist(), links.src.tolist(), strict=True)):
        if dst not in heard or links.pushed[k]:
            continue
        where, report = (int(links.stage[k]), src), heard[dst]
        used = {(u["stage"], u["node"]) for u in report.get("used", ())}
        refused = {(r["stage"], r["node"]) for r in report.get("rejected", ())}
        if where in used or (links.background[k] and where not in refused):
            yield dst, src


def _late_reports(rows: Rows) -> Iterator[Placed]:
    pulls = {(o.round, o.node): {tuple(p) for p in json.loads(o.pulls)} for o in rows("orders")}
    books = {line.seq: line.books for line in rows("lates")}
    for r in rows("reports"):
        if r.kind != "mixed" or not r.late:
            continue
        used = json.loads(r.json).get("used", ())
        asked = pulls[r.round, r.node]
        pairs = [(r.node, u["node"]) for u in used if (u["stage"], u["node"]) in asked]
        yield (r.seq, 0, r.round), CameLate(r.round, r.node, tuple(pairs), _book(books.get(r.seq)))


def _book(blob: bytes | None) -> Book | None:
    if blob is None:
        return None
    books: ControlState = read_blob(blob)
    pulls, n = books.pulls, books.pulls.n
    return Book(
        staleness=tuple(books.staleness.tolist()),
        queue=tuple(books.queue.tolist()),
        pulls={
            divmod(k, n): c for k, c in zip(pulls.keys.tolist(), pulls.counts.tolist(), strict=True)
        },
    )


def read_story(folder: Path) -> RunFacts:
    """The story of a finished or interrupted run, from its folder.

    Raises:
        RunFolderError: There is no `state.db`, it is damaged, or a coordinator is at work.
    """
    found = sorted(folder.rglob(STATE_FILE))
    if not found:
        raise RunFolderError(f"{folder}: no {STATE_FILE} below it; is this a run of the testbed?")
    ledger = SqliteLedger(found[0])
    try:
        diaries, unheard = _nodes(folder, _node_numbers(ledger.rows))
        return story_of(ledger.rows, diaries, unheard)
    finally:
        ledger.close()


def _node_numbers(rows: Rows) -> dict[str, int]:
    return {line.name: line.node for line in rows("workers")}


def _nodes(
    folder: Path, numbers: Mapping[str, int]
) -> tuple[dict[int, list[LogLine]], dict[int, frozenset[int]]]:
    """Diaries and unacknowledged reports; the folder of a node has its name."""
    diaries: dict[int, list[LogLine]] = {}
    unheard: dict[int, frozenset[int]] = {}
    for path in sorted(folder.rglob(HISTORY_FILE)):
        node = numbers.get(path.parent.name)
        if node is not None:
            diaries[node] = read_event_log(path)
            unheard[node] = _unheard(path.parent)
    return diaries, unheard


def _unheard(home: Path) -> frozenset[int]:
    """Rounds of the reports in a checkpoint; none where there is no checkpoint to read."""
    for path in sorted(home.glob("*.safetensors")):
        with suppress(OSError, ValueError):
            state = decode_state(path.read_bytes())
            return frozenset(r.round for r in state.reports if r.kind == "mixed")
    return frozenset()
