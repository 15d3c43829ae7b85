"""Workers that fail their orders: how long plans leave them out, and how long rounds wait for them.

A worker fails if it is connected and does not answer an order in time, if it reports that an order
failed, or if its training lasts much longer than estimated. Plans then leave it out for some time,
as if it were absent. After that time it is on trial: a round waits for it little longer than
expected. A worker that fails on trial is left out for twice as long. A worker that was lost, by a
broken session or by silence, is not left out when it is back; it only is on trial. So is a worker
that floods several others with pulls: they refuse the pulls of its orders, too.

After the first failure a late report or a restart ends the exclusion. After a failure on trial the
whole time has to pass, so that a worker that is always late cannot delay every round. Failures are
forgotten when the trial ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_EXCLUSION_S = 120.0
TRIAL = 10.0  # a trial lasts this many times as long as the exclusion

FailureRow = tuple[int, float, float, float, bool]  # node, then the fields of `Failure`


@dataclass
class Failure:
    """The newest failure of a worker. Times are seconds of the run."""

    excluded_until_s: float
    trial_until_s: float
    length_s: float = 0.0  # of the exclusion; 0: the worker is on trial only
    repeated: bool = False  # whether the worker was on trial when it failed


class Failures:
    """The failures of all workers that are excluded or on trial, by node."""

    def __init__(self, first_s: float) -> None:
        """Start without a failure; `first_s` is the length of the first exclusion."""
        self._first_s = first_s
        self._by_node: dict[int, Failure] = {}

    def failed(self, node: int, at_s: float) -> float:
        """Exclude a worker; return for how many seconds.

        >>> failures = Failures(15.0)
        >>> [failures.failed(3, at_s) for at_s in (0.0, 20.0, 60.0, 1e6)]
        [15.0, 30.0, 60.0, 15.0]
        """
        known = self._known(node, at_s)
        length_s = self._first_s
        if known is not None and known.length_s > 0:
            length_s = min(2.0 * known.length_s, max(MAX_EXCLUSION_S, self._first_s))
        until_s, trial_s = at_s + length_s, at_s + TRIAL * length_s
        self._by_node[node] = Failure(until_s, trial_s, length_s, repeated=known is not None)
        return length_s

    def put_on_trial(self, node: int, at_s: float) -> None:
        """Put a worker on trial that was lost, or whose pulls several others refuse."""
        known = self._known(node, at_s) or Failure(at_s, at_s)
        known.trial_until_s = max(known.trial_until_s, at_s + TRIAL * self._first_s)
        self._by_node[node] = known

    def reported(self, node: int, at_s: float) -> None:
        """End the exclusion of a worker that has failed once; it stays on trial."""
        known = self._known(node, at_s)
        if known is not None and not known.repeated:
            known.excluded_until_s = min(known.excluded_until_s, at_s)

    def is_excluded(self, node: int, at_s: float) -> bool:
        """Return whether plans leave a worker out."""
        known = self._by_node.get(node)
        return known is not None and at_s < known.excluded_until_s

    def is_on_trial(self, node: int, at_s: float) -> bool:
        """Return whether rounds wait for a worker little longer than expected."""
        return self._known(node, at_s) is not None

    def _known(self, node: int, at_s: float) -> Failure | None:
        known = self._by_node.get(node)
        return None if known is None or at_s >= known.trial_until_s else known

    # Persistence --------------------------------------------------------------------------------

    def to_list(self) -> list[FailureRow]:
        """Return all failures, for the ledger."""
        return [
            (node, f.excluded_until_s, f.trial_until_s, f.length_s, f.repeated)
            for node, f in self._by_node.items()
        ]

    def restore(self, rows: Iterable[FailureRow]) -> None:
        """Continue from failures that the ledger holds."""
        self._by_node = {
            node: Failure(until_s, trial_s, length_s, repeated)
            for node, until_s, trial_s, length_s, repeated in rows
        }
