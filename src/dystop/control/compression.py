"""Compression of what a link carries: the compressors, their bytes, and who knows what.

`int8` compresses a model by itself. `topk`, `randomk` and `sign` compress differences: every node
has a public copy of its model, which all others know or can catch up with. When others ask for its
model, the node adds the compressed difference between model and copy to the copy. What was left out
stays in the next difference; this is the error feedback of CHOCO-SGD (Koloskova 2019). Updates have
no copy: what was left out of one update is added to the next one (Stich 2018).

Simulator and testbed call the same functions (ADR 0059).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from dystop.params import param
from dystop.plan import Links
from dystop.rng import stream, uniform
from dystop.sparse import Bools, Ints, PairCounts, no_pairs
from dystop.types import Capabilities

Compressor = Literal["none", "topk", "randomk", "int8", "sign"]
Vector = NDArray[np.float32]

DIFFERENCES = frozenset(("topk", "randomk", "sign"))  # compressors of differences
KEEP_MEAN = frozenset(("none",))  # compressors under which doubly stochastic rows keep the mean
MEAN = "mean of models"
"""The entry of a run's description that says why mixing moves the mean of all models."""
NUMBER_BYTES = 4  # of a float32, and of the index of a number
MOST_MESSAGES = 1000  # that a receiver catches up with; beyond it gets a whole copy
LEVELS = 127  # steps of int8 on each side of zero


@dataclass(frozen=True)
class LinkParams:
    """What a link carries."""

    compression: Compressor = param(
        "none",
        "none: whole models; int8: one byte for each number; the others send differences to a "
        "public copy, with error feedback: topk: the largest numbers; randomk: numbers drawn from "
        "the seed; sign: one bit for each number",
    )
    fraction: Annotated[float, Gt(0), Le(1)] = param(
        0.1, "share of the numbers that topk and randomk send"
    )

    @property
    def sends_differences(self) -> bool:
        """Whether links carry differences to a public copy."""
        return self.compression in DIFFERENCES


@dataclass(frozen=True)
class Message:
    """One compressed difference or update, as a link carries it."""

    values: Vector  # topk, randomk: the numbers that are sent; sign: a magnitude for each tensor
    address: tuple[int, int]  # round and stage, from which `randomk` draws the places
    places: Ints | None = None  # topk: where the numbers are, ascending
    signs: Bools | None = None  # sign: which numbers are negative, [W]


@dataclass(frozen=True)
class Compression:
    """A compressor for models whose tensors have these sizes, one after another in a vector."""

    kind: Compressor
    fraction: float
    tensors: tuple[int, ...]  # numbers in each tensor that is not empty
    seed: int

    @cached_property
    def width(self) -> int:
        """Numbers in one model, W."""
        return sum(self.tensors)

    @property
    def kept(self) -> int:
        """Numbers that topk and randomk send."""
        return max(1, math.floor(self.fraction * self.width))

    @property
    def sends_differences(self) -> bool:
        """Whether differences to a public copy are sent, and not models."""
        return self.kind in DIFFERENCES

    @property
    def moves_mean(self) -> str:
        """Why mixing moves the mean of all models although its rows would keep it; empty: it stays.

        A worker keeps its own model whole, and others mix a copy of it that differs. What a row
        takes from a model is then not what another row adds.
        """
        if self.kind in KEEP_MEAN:
            return ""
        return f"{self.kind} sends copies that differ from the models which their owners keep"

    @property
    def message_bytes(self) -> int:
        """Bytes of one message: a compressed model, or one compressed difference.

        The positions that `topk` keeps are a list or, where it is shorter, one bit for each number.
        Those of `randomk` follow from the seed. `int8` and `sign` add a scale for each tensor.
        """
        bitmap, scales = -(-self.width // 8), NUMBER_BYTES * len(self.tensors)
        values = NUMBER_BYTES * self.kept
        return {
            "none": self.model_bytes,
            "topk": values + min(values, bitmap),
            "randomk": values,
            "int8": self.width + scales,
            "sign": bitmap + scales,
        }[self.kind]

    @property
    def model_bytes(self) -> int:
        """Bytes of a model that is not compressed."""
        return NUMBER_BYTES * self.width

    @property
    def most_messages(self) -> int:
        """Messages that are shorter together than a whole model; more are never sent at once."""
        return min(-(-self.model_bytes // self.message_bytes) - 1, MOST_MESSAGES)

    def applied(self, vector: Vector, node: int, t: int, stage: int = 0) -> Vector:
        """Return what receivers make of a compressed vector, [W].

        Args:
            vector: A model, a difference or an update, [W].
            node: Whose it is.
            t: Round in which it is sent; part of the address of randomness.
            stage: Mix stage that it feeds.
        """
        if self.kind == "none":
            return vector
        if self.kind == "int8":
            return dequantise(*self.quantised(vector, node, t, stage), self.tensors)
        return self.restored(self.message(vector, node, t, stage), node)

    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> "Message":
        """Return what a link carries of a difference or an update; arguments as for `applied`."""
        address = (t, stage)
        if self.kind == "sign":
            return Message(magnitudes(vector, self.tensors), address, signs=vector < 0)
        if self.kind == "topk":
            places = np.sort(largest(vector, self.kept))
            return Message(vector[places], address, places=places)
        return Message(vector[self.drawn_places(node, *address)], address)

    def restored(self, message: "Message", node: int) -> Vector:
        """Return the vector that a message of a node stands for, [W]."""
        if message.signs is not None:
            scale = np.repeat(message.values, self.tensors)
            return np.where(message.signs, -scale, scale)
        return self.added(np.zeros(self.width, np.float32), [message], node)

    def added(self, copy: Vector, messages: Sequence["Message"], node: int) -> Vector:
        """Return a public copy of a node after some of its messages, [W]."""
        after = copy.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged
            for message in messages:
                if message.signs is not None:
                    after += self.restored(message, node)
                    continue
                places = message.places
                if places is None:
                    places = self.drawn_places(node, *message.address)
                after[places] += message.values
        return after

    def drawn_places(self, node: int, t: int, stage: int) -> Ints:
        """Return the places that `randomk` draws; they have the address (node, t, stage)."""
        draw = stream(self.seed, "randomk", node, t, stage)
        places: Ints = draw.choice(self.width, self.kept, replace=False, shuffle=False)
        return places

    def quantised(
        self, vector: Vector, node: int, t: int, stage: int = 0
    ) -> tuple[NDArray[np.int8], Vector]:
        """Return the codes and scales of `int8`; the rounding has the address (node, t, stage)."""
        draws = uniform(self.seed, "int8", node, t, stage, np.arange(self.width))
        return quantise(vector, self.tensors, draws)


def describe_mean(able: Capabilities, compression: Compression | None) -> dict[str, str]:
    """Return why the mean of all models moves under a mechanism that promises to keep it.

    Header, `fleet.json` and report take it from here. Empty where the promise holds, and
    where there is none.
    """
    if compression is None or not able.doubly_stochastic or not compression.moves_mean:
        return {}
    return {MEAN: f"moved by mixing: {compression.moves_mean}"}


def mean_notice(physics: Mapping[str, str]) -> str:
    """Return a warning if mixing moves the mean of all models; empty if not.

    >>> mean_notice({})
    ''
    """
    if MEAN not in physics:
        return ""
    return (
        f"the {MEAN} is {physics[MEAN]}; this mechanism keeps the mean only with "
        "link.compression=none. dystop's page 'Compress what links carry' has measured how far it "
        "moves"
    )


def largest(vector: Vector, count: int) -> Ints:
    """Return where the numbers of largest magnitude are; the order is arbitrary.

    >>> sorted(largest(np.array([3.0, -5.0, 1.0], np.float32), 2).tolist())
    [0, 1]
    """
    if count >= len(vector):
        return np.arange(len(vector))
    places: Ints = np.argpartition(np.abs(vector), len(vector) - count)[-count:]
    return places


def magnitudes(vector: Vector, tensors: tuple[int, ...]) -> Vector:
    """Return the mean magnitude of each tensor, [T].

    >>> magnitudes(np.array([1.0, -3.0, 4.0], np.float32), (2, 1)).tolist()
    [2.0, 4.0]
    """
    total = np.add.reduceat(np.abs(vector), _starts(tensors), dtype=np.float64)
    return (total / tensors).astype(np.float32)


def quantise(
    vector: Vector, tensors: tuple[int, ...], draws: NDArray[np.float64]
) -> tuple[NDArray[np.int8], Vector]:
    """Return whole numbers from -127 to 127 and the scale of each tensor, [W] and [T].

    A number is rounded up with the probability of its distance to the whole number below, so that
    its expected value stays. A tensor that is not finite gets a scale that is not finite.

    >>> codes, scales = quantise(np.array([1.27, 0.5], np.float32), (2,), np.full(2, 0.5))
    >>> codes.tolist(), np.round(scales, 4).tolist()
    ([127, 50], [0.009999999776482582])
    """
    largest_of = np.maximum.reduceat(np.abs(vector), _starts(tensors))
    scales = (largest_of / np.float32(LEVELS)).astype(np.float32)
    each = np.repeat(scales, tensors).astype(np.float64)
    usable = np.isfinite(each) & (each > 0)
    ratio = np.divide(vector, each, out=np.zeros(len(vector)), where=usable)
    codes = np.clip(np.floor(ratio + draws), -LEVELS, LEVELS).astype(np.int8)
    codes[~usable] = 0
    return codes, scales


def dequantise(codes: NDArray[np.int8], scales: Vector, tensors: tuple[int, ...]) -> Vector:
    """Return the numbers that codes and scales stand for, [W]."""
    with np.errstate(invalid="ignore", over="ignore"):  # the model has diverged
        numbers: Vector = codes.astype(np.float32) * np.repeat(scales, tensors)
    return numbers


def _starts(tensors: tuple[int, ...]) -> Ints:
    """Return where each tensor begins in the vector."""
    return np.cumsum((0, *tensors[:-1]))


@dataclass(frozen=True)
class PublicVersions:
    """How many differences each node has published, and how many of them the others have."""

    published: Ints  # [nodes]
    known: PairCounts  # by (receiver, sender)


def no_versions(nodes: int) -> PublicVersions:
    """Return the versions before the first round: all know all copies, the initial models."""
    return PublicVersions(np.zeros(nodes, np.int64), no_pairs(nodes))


@dataclass(frozen=True)
class Charged:
    """The links of a round with the messages that each one carries."""

    links: Links  # `fraction` counts messages
    published: Ints  # [nodes], after the round
    arrivals: "Arrivals"
    rings: frozenset[int] = frozenset()  # stages whose links pass all messages on

    def settled(self, before: PublicVersions, lost: Bools) -> PublicVersions:
        """Return the versions after the round, in which some transfers were lost."""
        gone = lost.copy()
        for stage in self.rings:  # a broken ring delivers nothing
            around = self.links.stage == stage
            gone[around] = gone[around].any()
        brought = self.arrivals.without(gone)
        known = before.known.raised_to(brought.dst, brought.src, brought.version)
        return PublicVersions(self.published, known)


@dataclass(frozen=True)
class Arrivals:
    """Which public copies the links of a round bring to whom, [B]."""

    dst: Ints
    src: Ints
    version: Ints  # of the copy
    link: Ints  # that brings it

    def without(self, lost: Bools) -> "Arrivals":
        """Return what arrives when some links are lost."""
        here = ~lost[self.link]
        return Arrivals(self.dst[here], self.src[here], self.version[here], self.link[here])


def charged(
    links: Links, versions: PublicVersions, whole: float, rings: frozenset[int] = frozenset()
) -> Charged:
    """Charge each link with the differences that its receiver lacks, or with a whole copy.

    A node publishes one difference for each stage of a round in which somebody asks for its model,
    however many ask. Later stages count as if nothing was lost in earlier stages of the round.

    Args:
        links: Links of a plan. Those that carry updates carry one message.
        versions: Versions before the round.
        whole: Messages that are as long as a whole public copy.
        rings: Stages in which every link passes on what its receiver lacks of all other members.
    """
    published, known = versions.published.copy(), versions.known
    messages, found = np.ones(len(links)), list[Arrivals]()
    for stage in links.stages:
        here = np.flatnonzero((links.stage == stage) & ~links.delta)
        published[np.unique(links.src[here])] += 1
        got = _arrivals(links, here, published, ring=stage in rings)
        lacks = np.minimum(published[got.src] - known.get(got.dst, got.src), whole)
        messages[here] = np.bincount(got.link, lacks, minlength=len(links))[here]
        known = known.raised_to(got.dst, got.src, got.version)
        found.append(got)
    return Charged(replace(links, fraction=messages), published, _joined(found), rings)


def _arrivals(links: Links, here: Ints, published: Ints, *, ring: bool) -> Arrivals:
    """Return the copies that some links of a stage bring."""
    dst, src, link = links.dst[here], links.src[here], here
    if ring:
        members = np.unique(src)
        dst, src = np.repeat(dst, len(members)), np.tile(members, len(here))
        link = np.repeat(here, len(members))[dst != src]
        dst, src = dst[dst != src], src[dst != src]
    return Arrivals(dst, src, published[src], link)


def _joined(parts: Sequence[Arrivals]) -> Arrivals:
    none = np.zeros(0, np.int64)
    columns = ([none, *(getattr(p, f.name) for p in parts)] for f in fields(Arrivals))
    return Arrivals(*map(np.concatenate, columns))


def passed_on(links: Links, rings: frozenset[int]) -> Links:
    """Charge the links of rings with one message of every other member.

    Sums of compressed models are not compressed, so members pass messages on and add up themselves.
    """
    fraction = links.fraction.astype(float)
    for stage in rings:
        here = links.stage == stage
        fraction[here] = here.sum() - 1
    return replace(links, fraction=fraction)
