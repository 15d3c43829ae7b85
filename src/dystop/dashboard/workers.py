"""The workers of a run: their names and data, how stale each is, and how often it was active."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dystop.dashboard.history import History, numbers
from dystop.dashboard.library import Card
from dystop.dashboard.values import text, whole
from dystop.units import number

MOST_ROWS = 500
NOT_TOLD = (
    "Who was active is not in every record (output.topology=full keeps it, also of large fleets), "
    "so the staleness of single workers is not known."
)
DIFFERS = (
    "Staleness is counted here from who was ordered to train. It differs from the histogram that "
    "the run wrote down: some orders failed, or some workers were away."
)


@dataclass(frozen=True)
class Workers:
    """All workers, as far as the files tell."""

    count: int
    names: Sequence[object]
    sizes: Sequence[object]
    staleness: list[int] | None  # when the last round opened
    doubt: str  # what a reader must know of it
    active: frozenset[int] | None  # in the last round
    history: History

    def name(self, worker: int) -> str:
        """Real workers have names, simulated ones have numbers."""
        return text(self.names[worker] if worker < len(self.names) else None, str(worker))

    def row(self, worker: int) -> list[Any]:
        """Name, staleness, last round it was active, how often, samples; None: not recorded."""
        told = self.history.last is not None and not self.history.silent
        return [
            self.name(worker),
            self.staleness[worker] if self.staleness else None,
            self.history.last_active.get(worker, 0) if told else None,
            self.history.times_active[worker] if told else None,
            whole(self.sizes[worker]) if worker < len(self.sizes) else None,
        ]


def workers_state(card: Card, history: History) -> Workers:
    """Put together what configuration, fleet, enrolment and records say about the workers."""
    count = workers_of(card, history)
    staleness, doubt = ages(count, history)
    sizes = (card.fleet or {}).get("data_size")
    told = history.last.active_ids if history.last else None
    return Workers(
        count=count,
        names=_names(card),
        sizes=sizes if isinstance(sizes, list) else [],
        staleness=staleness,
        doubt=doubt,
        active=None if told is None else frozenset(numbers(told)),
        history=history,
    )


def workers_of(card: Card, history: History) -> int:
    """How many workers there are; 0 where nobody says so."""
    fleet = card.fleet or {}
    for key in ("data_size", "label_counts"):
        if isinstance(found := fleet.get(key), list) and found:
            return len(found)
    return (whole(history.last.alive) if history.last else None) or 0


def _names(card: Card) -> list[object]:
    rows = (card.enrolment or {}).get("workers")
    if not isinstance(rows, list):
        return []
    return [row.get("name") if isinstance(row, dict) else None for row in rows]


def ages(count: int, history: History) -> tuple[list[int] | None, str]:
    """Staleness of each worker when the last round opened, and a doubt about it."""
    if history.last is None:
        return None, ""
    staleness = history.staleness(count)
    if staleness is None or min(staleness, default=0) < 0:
        return None, NOT_TOLD
    return staleness, "" if agrees(staleness, history) else DIFFERS


def agrees(staleness: Sequence[int], history: History) -> bool:
    """Whether staleness counted from who was active is what the run itself wrote down.

    The histogram of a record counts the workers that were up. On the testbed, a worker whose
    exchange failed, or that was away, has another staleness than who was active tells.
    """
    last = history.last
    if last is None or not isinstance(last.staleness_histogram, list):
        return False
    recorded = [whole(n) or 0 for n in last.staleness_histogram]
    counted = [0] * max(max(staleness, default=0) + 1, len(recorded))
    for value in staleness:
        counted[value] += 1
    recorded += [0] * (len(counted) - len(recorded))
    if last.alive == len(staleness):
        return recorded == counted
    return all(n <= m for n, m in zip(recorded, counted, strict=True))


def workers_view(crew: Workers) -> dict[str, Any]:
    """The table of workers, the stalest first."""
    stale = crew.staleness
    if stale is None:
        chosen = list(range(min(crew.count, MOST_ROWS)))
    else:
        chosen = heapq.nsmallest(MOST_ROWS, range(crew.count), key=lambda i: (-stale[i], i))
    notes = [crew.doubt] if crew.doubt else []
    if crew.count > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {number(crew.count)} workers are listed.")
    return {"rows": [crew.row(i) for i in chosen], "notes": notes}
