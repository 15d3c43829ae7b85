"""What is kept of a record log: downsampled series, the last round, activity of workers."""

from array import array
from collections import Counter

from dystop.dashboard.run_folders.downsample import DownsampledSeries, round_point
from dystop.dashboard.run_folders.files import as_count, as_number
from dystop.folders.late_scores import LateScores, with_late_score
from dystop.record import RoundRecord
from dystop.recorders import read_record

ROUNDS = ("round", "clock_s", "wire_bytes", "loss", "staleness_mean", "staleness_max")
EVALUATIONS = (
    "round", "clock_s", "wire_bytes",
    "accuracy", "accuracy_global", "test_loss", "test_loss_global",
)  # fmt: skip


class History:
    """The part of a record log that the page shows; it grows line by line.

    Args:
        late: Scores that came after the record of their round, by round; may grow.
    """

    def __init__(self, late: LateScores | None = None) -> None:
        self._late = {} if late is None else late
        self.rounds, self.evaluations = DownsampledSeries(), DownsampledSeries()
        self.tested_s, self.scores = array("d"), array("d")  # every evaluation, not downsampled
        self.last: RoundRecord | None = None
        self.evaluated: RoundRecord | None = None  # the last one with an accuracy
        self.positions: object = None  # of moving workers
        self.last_active: dict[int, int] = {}  # round, by worker
        self.times_active: Counter[int] = Counter()
        self._before: dict[int, int] = {}  # before the last round, of the workers active in it
        self.rounds_without_ids = 0  # rounds that do not record who was active
        self.damaged = 0  # lines that are no records
        self._unscored: dict[int, RoundRecord] = {}  # whose score may still come

    def read(self, line: bytes) -> None:
        """Add one line of the log; a line that is no record is counted, not raised."""
        try:
            record = read_record(line.decode())
        except (ValueError, TypeError, RecursionError):
            self.damaged += 1
            return
        if as_count(record.round) is None or as_number(record.clock_s) is None:
            self.damaged += 1
            return
        self.add(with_late_score(record, self._late))

    def add(self, record: RoundRecord) -> None:
        """Add one round."""
        self.last = record
        self.positions = record.get("positions") or self.positions
        self._add_round(record)
        if as_number(record.accuracy) is not None:
            self._add_evaluation(record)
        elif record.no_score is not None:
            self._unscored[record.round] = record
        self._count_active(record)

    def add_late_score(self, round_: int) -> bool:
        """Add the late score of a round; return False if it belongs before others that are here."""
        record = self._unscored.pop(round_, None)
        if record is None:
            return True  # the record follows, or has a score
        if self.evaluated is not None and self.evaluated.round > round_:
            return False
        scored = with_late_score(record, self._late)
        if as_number(scored.accuracy) is not None:
            self._add_evaluation(scored)
        return True

    def _add_round(self, r: RoundRecord) -> None:
        at = (r.round, as_number(r.clock_s), as_count(r.wire_bytes_total))
        means = (as_number(r.loss), as_number(r.staleness_mean))
        self.rounds.add(round_point(at, means, (as_number(r.staleness_max),)))

    def _add_evaluation(self, r: RoundRecord) -> None:
        self.evaluated = r
        scores = (
            r.accuracy,
            r.get("accuracy_global"),
            r.get("test_loss"),
            r.get("test_loss_global"),
        )
        at = (r.round, as_number(r.clock_s), as_count(r.wire_bytes_total))
        self.tested_s.append(r.clock_s)
        self.scores.append(r.accuracy or 0.0)
        self.evaluations.add(round_point(at, tuple(map(as_number, scores))))

    def _count_active(self, record: RoundRecord) -> None:
        if record.get("active_ids") is None:
            self.rounds_without_ids += 1
            return
        active = worker_ids(record.get("active_ids"))
        self._before = {i: self.last_active.get(i, 0) for i in active}
        self.last_active.update(dict.fromkeys(active, record.round))
        self.times_active.update(active)

    def staleness(self, workers: int) -> list[int] | None:
        """Return the staleness of each worker when the last round opened.

        Records contain only a histogram, but the active workers determine each staleness
        (eq:staleness). None unless every record names them.
        """
        if self.last is None or self.rounds_without_ids:
            return None
        since = {**self.last_active, **self._before}
        return [self.last.round - 1 - since.get(i, 0) for i in range(workers)]


def worker_ids(values: object) -> list[int]:
    """Return the worker ids in an untrusted list, each once.

    >>> worker_ids([3, 1, "x", -1, 3]), worker_ids(None)
    ([3, 1], [])
    """
    if not isinstance(values, (list, tuple)):
        return []
    return list(dict.fromkeys(n for v in values if (n := as_count(v)) is not None))
