"""What is kept of a record log: thinned curves, the last round, and who was active how often."""

from collections import Counter

from dystop.dashboard.downsample import Line, point
from dystop.dashboard.values import known, whole
from dystop.record import RoundRecord, from_json

ROUNDS = ("round", "clock_s", "wire_bytes", "loss", "staleness_mean", "staleness_max")
TESTS = ("round", "clock_s", "accuracy", "accuracy_global", "test_loss", "test_loss_global")


class History:
    """The part of a run's history that the page shows; grows line by line."""

    def __init__(self) -> None:
        self.rounds, self.tests = Line(), Line()
        self.last: RoundRecord | None = None
        self.scored: RoundRecord | None = None  # the last one with an accuracy
        self.positions: object = None  # of workers that move
        self.last_active: dict[int, int] = {}  # round, by worker
        self.times_active: Counter[int] = Counter()
        self._before: dict[int, int] = {}  # the same before the last round, of who was active in it
        self.silent = 0  # rounds that do not say who was active
        self.damaged = 0  # lines that are no records

    def read(self, line: bytes) -> None:
        """Take in one line of the log; what is no record is counted, not raised."""
        try:
            record = from_json(line.decode())
        except (ValueError, TypeError, RecursionError):
            self.damaged += 1
            return
        if whole(record.round) is None or known(record.clock_s) is None:
            self.damaged += 1
            return
        self.add(record)

    def add(self, record: RoundRecord) -> None:
        """Take in one round."""
        self.last = record
        self.positions = record.positions or self.positions
        self._add_round(record)
        if known(record.accuracy) is not None:
            self.scored = record
            self._add_test(record)
        self._count(record)

    def _add_round(self, r: RoundRecord) -> None:
        at = (r.round, known(r.clock_s), whole(r.wire_bytes_total))
        means = (known(r.loss), known(r.staleness_mean))
        self.rounds.add(point(at, means, (known(r.staleness_max),)))

    def _add_test(self, r: RoundRecord) -> None:
        scores = (r.accuracy, r.accuracy_global, r.test_loss, r.test_loss_global)
        self.tests.add(point((r.round, known(r.clock_s)), tuple(map(known, scores))))

    def _count(self, record: RoundRecord) -> None:
        if record.active_ids is None:
            self.silent += 1
            return
        active = numbers(record.active_ids)
        self._before = {i: self.last_active.get(i, 0) for i in active}
        self.last_active.update(dict.fromkeys(active, record.round))
        self.times_active.update(active)

    def staleness(self, workers: int) -> list[int] | None:
        """Rounds since each worker last started training, when the last round opened.

        Records hold a histogram of it, not whose it is; but they say who was active, and from that
        it follows (eq:staleness). None where they do not say so of every round.
        """
        if self.last is None or self.silent:
            return None
        since = {**self.last_active, **self._before}
        return [self.last.round - 1 - since.get(i, 0) for i in range(workers)]


def numbers(values: object) -> list[int]:
    """The numbers of workers in a list that a file brought along, each once.

    >>> numbers([3, 1, "x", -1, 3]), numbers(None)
    ([3, 1], [])
    """
    if not isinstance(values, (list, tuple)):
        return []
    return list(dict.fromkeys(n for v in values if (n := whole(v)) is not None))
