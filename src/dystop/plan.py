"""The plan of a round: the active set, the links, and the mixing weights.

A plan consists of arrays, so that it scales to a million workers. `(dst, src)` means *dst receives
from src*, as in `dystop.sparse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dystop.sparse import Bools, Floats, Ints, Rows, group, ints, row_order

MixKind = Literal["linear", "delta", "masked"]


@dataclass(frozen=True)
class Links:
    """Directed transfers of one round, as parallel arrays.

    A link carries the model of `src` as it is before mix stage `stage`. A link that no mixing row
    names is a push: its model waits in the mailbox of `dst` for the next activation of `dst`.
    """

    dst: Ints
    src: Ints
    stage: Ints  # the mix stage that the link feeds
    fraction: Floats  # share of a full model on the wire
    delta: Bools  # carries the last update (trained minus start) instead of the model
    background: Bools  # the round does not wait for the transfer
    pushed: Bools  # the time is charged to the sender, otherwise to the receiver

    def __len__(self) -> int:
        return len(self.dst)

    def take(self, keep: Bools | Ints) -> "Links":
        """Return the links that a mask or an index array selects."""
        return Links(*(getattr(self, name)[keep] for name in _COLUMNS))

    @cached_property
    def stage_count(self) -> int:
        """Number of mix stages, up to the last one that a link feeds."""
        return int(self.stage.max(initial=-1)) + 1

    def of_stage(self, stage: int) -> "Links":
        """Return the links that feed one mix stage."""
        return self if self.stages == [stage] else self.take(self.stage == stage)

    @cached_property
    def stages(self) -> list[int]:
        """The mix stages that the links feed, ascending."""
        stages: list[int] = np.flatnonzero(np.bincount(self.stage)).tolist()
        return stages

    def at_stage(self, stage: int) -> slice | Ints:
        """Return the numbers of the links that feed one mix stage; a slice where all do."""
        return slice(None) if self.stages == [stage] else np.flatnonzero(self.stage == stage)

    @cached_property
    def payer(self) -> Ints:
        """The node to which the time of each link is charged: the sender of a push, else dst."""
        return np.where(self.pushed, self.src, self.dst)

    @cached_property
    def by_receiver(self) -> Rows:
        """Senders to each node, ascending. Raises IndexError if an id is negative.

        The property is cached because the plan check and the pull counts share it.
        """
        return group(int(self.dst.max(initial=-1)) + 1, self.dst, self.src, ascending=True)


_COLUMNS = tuple(column.name for column in fields(Links))


def links(
    dst: Ints,
    src: Ints,
    *,
    stage: int | Ints = 0,
    fraction: float = 1.0,
    delta: bool = False,
    background: bool = False,
    pushed: bool | Bools = False,
) -> Links:
    """Return links of one kind, of which some may be pushed or feed other stages.

    `join_links` joins several kinds.
    """
    n = len(dst)
    return Links(
        ints(dst),
        ints(src),
        stage if isinstance(stage, np.ndarray) else _column(stage, n, np.int64),
        _column(fraction, n, np.float64),
        _column(delta, n, np.bool_),
        _column(background, n, np.bool_),
        _column(pushed, n, np.bool_) if isinstance(pushed, bool) else pushed,
    )


def _column(value: float, n: int, dtype: type) -> NDArray[Any]:
    """Return an array of n times a value; zeros take no memory until they are written."""
    if not value:
        return np.zeros(n, dtype)
    column: NDArray[Any] = np.empty(n, dtype)
    column.fill(value)  # `np.full` takes three times as long for few links
    return column


def no_links() -> Links:
    """Return the links of a round without transfers."""
    return links(ints([]), ints([]))


def join_links(parts: Sequence[Links]) -> Links:
    """Return links of several kinds as one set."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return no_links()
    return Links(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


@dataclass(frozen=True, slots=True)
class Mix:
    """One mix stage, as rows one after another: row k belongs to worker `receiver[k]`.

    `linear`: y_i = sum_j w_ij x_j, and a row sums to one.
    `delta`:  y_i = start_i + sum_j w_ij delta_j, and a row may have any sum.
    `masked`: linear on the coordinates that (seed, kept share) select, unchanged elsewhere.

    A row of an inactive worker is a passive mix: its published model changes now, and the result of
    its current training is added when that training ends.
    """

    receiver: Ints  # [R]
    indptr: Ints  # [R + 1]
    source: Ints  # [M]
    weight: Floats  # [M]
    kind: MixKind = "linear"
    mask: tuple[int, float] | None = None  # (seed, kept share)
    collective: bool = False  # sources are reached over a path of this stage's links (a ring)
    compensation: float = 0.0  # strength of the first-order correction for the age of updates
    carried: Floats | None = None  # [M], weights of carried vectors with rows of their own

    @property
    def row_of(self) -> Ints:
        """Row number of every weight, [M]."""
        return np.arange(len(self.receiver)).repeat(self.row_sizes)

    @property
    def dst(self) -> Ints:
        """Receiver of every weight, [M]."""
        return self.receiver.repeat(self.row_sizes)

    @property
    def row_sizes(self) -> Ints:
        """Number of weights in each row, [R]."""
        return self.indptr[1:] - self.indptr[:-1]

    def take(self, keep: Bools) -> "Mix":
        """Return the rows that a mask over the receivers selects, [R]."""
        kept = keep[self.row_of]
        indptr = np.append(0, np.cumsum(np.diff(self.indptr)[keep])).astype(np.int64)
        return replace(
            self,
            receiver=self.receiver[keep],
            indptr=indptr,
            source=self.source[kept],
            weight=self.weight[kept],
            carried=None if self.carried is None else self.carried[kept],
        )


def mix_of(
    dst: Ints,
    source: Ints,
    weight: Floats,
    *,
    kind: MixKind = "linear",
    mask: tuple[int, float] | None = None,
    collective: bool = False,
    carried: Floats | None = None,
) -> Mix:
    """Return the mix of triples (dst, source, weight), with rows and sources sorted by id."""
    dst, source = ints(dst), ints(source)
    order = row_order(dst, source)
    dst, source, weight = dst[order], source[order], np.asarray(weight, float)[order]
    begins = np.ones(len(dst) + 1, bool)  # the last one is the end
    np.not_equal(dst[1:], dst[:-1], out=begins[1:-1])
    indptr = begins.nonzero()[0]
    carried = None if carried is None else np.asarray(carried, float)[order]
    return Mix(dst[indptr[:-1]], indptr, source, weight, kind, mask, collective, carried=carried)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision of a mechanism for one round."""

    active: Ints  # workers that mix and start a new local training, in the order of choice
    links: Links
    mixes: tuple[Mix, ...] = ()
    steps: Ints | None = None  # mini-batches per active worker; None: one local epoch each
    rate: Floats | None = None  # factor on the learning rate of each active worker; None: 1
    synchronous: bool = False  # exchanges wait for the partner's training of this round
    join: bool = False  # the round also waits for the new training to end
    keep_mail: bool = False  # a message stays in the mailbox until its sender sends another one
    notes: Mapping[str, float] = field(
        default_factory=dict
    )  # numbers for the record, such as scores
