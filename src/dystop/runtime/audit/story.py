"""What is left of a run, as the offline checker wants it: plain facts, no arrays, no machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dystop.runtime.shell.history import Line

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
class Story:
    """All that the checker looks at."""

    workers: int
    bound: float | None  # of the virtual queues; None: they stay empty
    planned: Sequence[Planned]
    outcomes: Sequence[tuple[int, int, str]]  # (round, node, ending), every one ever stored
    steps: Sequence[Closed | CameLate]  # in the order in which they were committed
    diaries: Mapping[int, Sequence[Line]]  # `history.jsonl` of each node
    freeze: bool = True  # staleness of absent workers stands still
    queues: bool = True  # whether the bound is known
    unfinished: frozenset[int] = frozenset()  # rounds still open at the end
    # rounds whose reports were not acknowledged when the run ended, by node
    unheard: Mapping[int, frozenset[int]] = field(default_factory=dict)
