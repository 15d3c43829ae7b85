"""The facts that the offline checker reads, and how they are read from the files of a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dystop.errors import RunFolderError
from dystop.foreign_files import MODEL_BYTES, read_bounded
from dystop.testbed.coordinator.conduct.incidents import IncidentEntry, entry_from_json
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.steps import Closed as Closed
from dystop.testbed.ledger.steps import LateReport as LateReport
from dystop.testbed.ledger.steps import Planned as Planned
from dystop.testbed.ledger.steps import RoundFacts, Rows, round_facts
from dystop.testbed.ledger.steps import StateFacts as StateFacts
from dystop.testbed.ledger.tables import INCIDENT, read_blob
from dystop.testbed.worker.checkpoint import decode_state
from dystop.testbed.worker.history import HISTORY_FILE, LogLine, read_event_log

STATE_FILE = "state.db"


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
    archived: Sequence[RoundFacts] = (),
) -> RunFacts:
    """Return the facts of a run.

    Args:
        rows: `Ledger.rows`.
        event_logs: Lines of each node's `history.jsonl`.
        unacknowledged: Rounds whose reports each node still has in its checkpoint.
        archived: `SqliteLedger.archived`.
    """
    meta = {line.key: line.value for line in rows("meta")}
    rounds = list(rows("rounds"))
    pieces = [*archived, round_facts(rows)]
    bound = meta.get("queue_bound")
    return RunFacts(
        workers=len(read_blob(rounds[0].plan)["view"].alive) if rounds else 0,
        bound=None if bound in (None, "None") else float(bound or 0),
        planned=[plan for piece in pieces for plan in piece.planned],
        outcomes=[
            *_archived_outcomes(archived),
            *((o.round, o.node, o.outcome) for o in rows("orders") if o.outcome is not None),
        ],
        steps=[step for piece in pieces for step in piece.steps],
        event_logs=event_logs,
        freeze=meta.get("away", "freeze") == "freeze",
        queues=bound is not None,
        unfinished=frozenset(line.round for line in rounds if line.closed_s is None),
        unacknowledged=unacknowledged,
        names={node: name for name, node in _node_numbers(rows).items()},
        incidents=[
            entry_from_json(line.value) for line in rows("kept") if line.key.startswith(INCIDENT)
        ],
    )


def _archived_outcomes(archived: Sequence[RoundFacts]) -> Iterator[tuple[int, int, str]]:
    """Yield the outcomes of orders whose rows are gone: those that were confirmed."""
    for step in (step for piece in archived for step in piece.steps):
        if isinstance(step, Closed):
            yield from ((step.round, node, "DONE") for node in sorted(step.done))
        else:
            yield step.round, step.node, "LATE"


def read_facts(folder: Path) -> RunFacts:
    """Return the facts of a finished or interrupted run from its folder.

    Raises:
        RunFolderError: There is no `state.db`, it or its archive is damaged, or a coordinator is
            running.
    """
    found = sorted(folder.rglob(STATE_FILE))
    if not found:
        raise RunFolderError(
            f"{folder}: no {STATE_FILE} below it; give the folder of a testbed run"
        )
    ledger = SqliteLedger(found[0])
    try:
        event_logs, unacknowledged = _nodes(folder, _node_numbers(ledger.rows))
        return facts_of(ledger.rows, event_logs, unacknowledged, ledger.archived())
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
