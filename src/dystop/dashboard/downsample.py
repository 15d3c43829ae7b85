"""A long history in few points: neighbours are put together whenever there are too many."""

from dataclasses import dataclass

MOST = 1000
"""Points of a line; half as many after neighbours were put together."""

Sum = tuple[float, int]  # of the values that are known, and how many they are
Cell = float | int | None


@dataclass(frozen=True, slots=True)
class Point:
    """Some rounds in sequence: where they end, means, and largest values."""

    at: tuple[Cell, ...]  # of the last round: nothing is shown before it happened
    sums: tuple[Sum, ...]
    most: tuple[float | None, ...]
    rounds: int = 1

    def cells(self) -> list[Cell]:
        """The point as the page gets it: where, means, largest."""
        means = [_short(total / count) if count else None for total, count in self.sums]
        return [*map(_short, self.at), *means, *map(_short, self.most)]


def point(
    at: tuple[Cell, ...], means: tuple[float | None, ...], most: tuple[float | None, ...] = ()
) -> Point:
    """The point of a single round; None is a value that was not recorded.

    >>> point((1, 0.5), (2.0, None)).cells()
    [1, 0.5, 2.0, None]
    """
    return Point(at, tuple((0.0, 0) if v is None else (v, 1) for v in means), most)


def joined(a: Point, b: Point) -> Point:
    """Two neighbours as one point.

    >>> joined(point((1,), (2.0, None), (3,)), point((2,), (4.0, 1.0), (1,))).cells()
    [2, 3.0, 1.0, 3]
    """
    sums = tuple((x + y, m + n) for (x, m), (y, n) in zip(a.sums, b.sums, strict=True))
    most = tuple(_larger(x, y) for x, y in zip(a.most, b.most, strict=True))
    return Point(b.at, sums, most, a.rounds + b.rounds)


def _larger(x: float | None, y: float | None) -> float | None:
    return max((v for v in (x, y) if v is not None), default=None)


def _short(value: Cell) -> Cell:
    """Six digits are more than a screen shows."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Line:
    """Points in sequence, at most `MOST`; all but the last stand for `group` rounds."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.group = 1
        self.epoch = 0  # counts how often earlier points were replaced

    def add(self, new: Point) -> None:
        """Append a round."""
        if self.points and self.points[-1].rounds < self.group:
            self.points[-1] = joined(self.points[-1], new)
            return
        self.points.append(new)
        if len(self.points) > MOST:
            self._halve()

    def _halve(self) -> None:
        left, right = self.points[::2], self.points[1::2]
        rest = left[len(right) :]
        self.points = [joined(a, b) for a, b in zip(left, right, strict=False)] + rest
        self.group *= 2
        self.epoch += 1
