"""Downsampling of a growing series: neighbouring points merge when there are too many."""

from dataclasses import dataclass

MAX_POINTS = 1000
"""Largest number of points of a series; merging neighbours halves it."""

Sum = tuple[float, int]  # of the known values, and their number
Value = float | int | None


@dataclass(frozen=True, slots=True)
class Point:
    """Consecutive rounds: position of the last one, means and largest values."""

    at: tuple[Value, ...]  # of the last round, so that nothing is shown before it happened
    sums: tuple[Sum, ...]
    largest: tuple[float | None, ...]
    rounds: int = 1

    def row(self) -> list[Value]:
        """Return the point as the page gets it: position, means, largest values."""
        means = [_six_digits(total / count) if count else None for total, count in self.sums]
        return [*map(_six_digits, self.at), *means, *map(_six_digits, self.largest)]


def round_point(
    at: tuple[Value, ...], means: tuple[float | None, ...], largest: tuple[float | None, ...] = ()
) -> Point:
    """Return the point of a single round; None is a value that was not recorded.

    >>> round_point((1, 0.5), (2.0, None)).row()
    [1, 0.5, 2.0, None]
    """
    return Point(at, tuple((0.0, 0) if v is None else (v, 1) for v in means), largest)


def merged(a: Point, b: Point) -> Point:
    """Merge two neighbouring points.

    >>> merged(round_point((1,), (2.0, None), (3,)), round_point((2,), (4.0, 1.0), (1,))).row()
    [2, 3.0, 1.0, 3]
    """
    sums = tuple((x + y, m + n) for (x, m), (y, n) in zip(a.sums, b.sums, strict=True))
    largest = tuple(_larger(x, y) for x, y in zip(a.largest, b.largest, strict=True))
    return Point(b.at, sums, largest, a.rounds + b.rounds)


def _larger(x: float | None, y: float | None) -> float | None:
    return max((v for v in (x, y) if v is not None), default=None)


def _six_digits(value: Value) -> Value:
    """Round to six digits, more than a screen shows."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


class DownsampledSeries:
    """At most `MAX_POINTS` points; all but the last stand for `group` rounds."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.group = 1
        self.version = 0  # counts how often earlier points were merged

    def add(self, new: Point) -> None:
        """Append a round."""
        if self.points and self.points[-1].rounds < self.group:
            self.points[-1] = merged(self.points[-1], new)
            return
        self.points.append(new)
        if len(self.points) > MAX_POINTS:
            self._halve()

    def _halve(self) -> None:
        left, right = self.points[::2], self.points[1::2]
        rest = left[len(right) :]
        self.points = [merged(a, b) for a, b in zip(left, right, strict=False)] + rest
        self.group *= 2
        self.version += 1
