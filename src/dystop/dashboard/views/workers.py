"""The workers of a run: name, samples, staleness, and how often each was active."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dystop.dashboard.run_folders.files import as_count, as_text
from dystop.dashboard.run_folders.history import History, worker_ids
from dystop.dashboard.run_folders.library import RunFiles
from dystop.units import number

MAX_ROWS = 500
ACTIVE_NOT_RECORDED = (
    "Not every record names the active workers, so the staleness of single workers is unknown. "
    "output.topology=full records them, also for large fleets."
)
STALENESS_DIFFERS = (
    "Staleness is computed here from the workers that were ordered to train. It differs from the "
    "histogram that the run recorded: some orders failed, or some workers were absent."
)


@dataclass(frozen=True)
class Workers:
    """All workers, as far as the files describe them."""

    count: int
    names: Sequence[object]
    sizes: Sequence[object]
    staleness: list[int] | None  # when the last round opened
    note: str  # a caveat about it, or empty
    active: frozenset[int] | None  # in the last round
    history: History

    def name(self, worker: int) -> str:
        """Return the name of a testbed worker, the number of a simulated one."""
        return as_text(self.names[worker] if worker < len(self.names) else None, str(worker))

    def row(self, worker: int) -> list[Any]:
        """Return name, staleness, last active round, rounds active, samples; None: not recorded."""
        recorded = self.history.last is not None and not self.history.rounds_without_ids
        return [
            self.name(worker),
            self.staleness[worker] if self.staleness else None,
            self.history.last_active.get(worker, 0) if recorded else None,
            self.history.times_active[worker] if recorded else None,
            as_count(self.sizes[worker]) if worker < len(self.sizes) else None,
        ]


def workers_state(run: RunFiles, history: History) -> Workers:
    """Collect what configuration, fleet, enrolment and records say about the workers."""
    count = worker_count(run, history)
    staleness, note = worker_staleness(count, history)
    sizes = (run.fleet or {}).get("data_size")
    active = history.last.get("active_ids") if history.last else None
    return Workers(
        count=count,
        names=_names(run),
        sizes=sizes if isinstance(sizes, list) else [],
        staleness=staleness,
        note=note,
        active=None if active is None else frozenset(worker_ids(active)),
        history=history,
    )


def worker_count(run: RunFiles, history: History) -> int:
    """Return the number of workers, 0 where no file says so."""
    fleet = run.fleet or {}
    for key in ("data_size", "label_counts"):
        if isinstance(found := fleet.get(key), list) and found:
            return len(found)
    return (as_count(history.last.alive) if history.last else None) or 0


def _names(run: RunFiles) -> list[object]:
    rows = (run.enrolment or {}).get("workers")
    if not isinstance(rows, list):
        return []
    return [row.get("name") if isinstance(row, dict) else None for row in rows]


def worker_staleness(count: int, history: History) -> tuple[list[int] | None, str]:
    """Return the staleness of each worker when the last round opened, and a caveat."""
    if history.last is None:
        return None, ""
    staleness = history.staleness(count)
    if staleness is None or min(staleness, default=0) < 0:
        return None, ACTIVE_NOT_RECORDED
    return staleness, "" if matches_histogram(staleness, history) else STALENESS_DIFFERS


def matches_histogram(staleness: Sequence[int], history: History) -> bool:
    """Return whether staleness computed from active workers matches the recorded histogram.

    The histogram counts alive workers. On the testbed, a worker whose exchange failed or that was
    absent has another staleness than the active workers imply.
    """
    last = history.last
    if last is None or not isinstance(last.staleness_histogram, list):
        return False
    recorded = Counter({k: as_count(n) or 0 for k, n in enumerate(last.staleness_histogram)})
    counted = Counter(staleness)
    return recorded == counted if last.alive == len(staleness) else recorded <= counted


def workers_view(workers: Workers) -> dict[str, Any]:
    """Return the table of workers, the stalest first."""
    stale = workers.staleness
    if stale is None:
        chosen = list(range(min(workers.count, MAX_ROWS)))
    else:
        chosen = heapq.nsmallest(MAX_ROWS, range(workers.count), key=lambda i: (-stale[i], i))
    notes = [workers.note] if workers.note else []
    if workers.count > MAX_ROWS:
        notes.append(f"{MAX_ROWS} of {number(workers.count)} workers are listed.")
    return {"rows": [workers.row(i) for i in chosen], "notes": notes}
