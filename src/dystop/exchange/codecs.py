"""Codecs: what a link carries of a model, how many bytes that takes, and who knows what.

`int8` packs a model by itself. `topk`, `randomk` and `sign` pack differences: every node has a
public copy of its model, which all others know or can catch up with. When others ask for its model,
the node adds the packed difference between model and copy to the copy. What was left out stays in
the next difference; this is the error feedback of CHOCO-SGD (Koloskova 2019). Updates have no copy:
what was left out of one update is added to the next one (Stich 2018).

Where a mechanism keeps the mean of all models, so does every codec: workers move by the rule of
CHOCO-SGD, x_i + gamma sum_j w_ij (copy_j - copy_i), in which both ends of a link know both copies,
and every codec packs differences. What one row takes is then what another one adds.

Simulator and testbed call the same functions (ADR 0059).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from dystop.errors import ConfigError
from dystop.params import param
from dystop.plan import Links
from dystop.registry import OR_NONE, NameIn, Registry, is_none
from dystop.rng import stream, uniform
from dystop.sparse import Bools, Ints, PairCounts, no_pairs
from dystop.types import Capabilities

Vector = NDArray[np.float32]

MEAN = "mean of models"
"""The entry of a run's description that says why mixing moves the mean of all models."""
NUMBER_BYTES = 4  # of a float32, and of the index of a number
MOST_MESSAGES = 1000  # that a receiver catches up with; beyond it gets a whole copy
LEVELS = 127  # steps of int8 on each side of zero
MAX_ROUND, MAX_STAGE = 10**12, 64  # of the address from which the places of `randomk` follow

Message = Mapping[str, NDArray[Any]]
"""What a link carries of one vector: the arrays of `Codec.parts`, by name."""


@dataclass(frozen=True)
class Part:
    """One array of a message."""

    name: str
    type: Literal["F32", "U32", "I64", "U8"]  # as in a safetensors file
    count: int


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A codec for models whose tensors lie one after another in a vector.

    A codec of a configuration has its parameters; `of` says for which models it is.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    always_differences: ClassVar[bool] = True  # to a public copy; else only under CHOCO's rule

    step: Annotated[float, Ge(0), Le(1)] = param(
        0.0, "gamma of CHOCO's rule, by which mixing keeps the mean of models; 0: the usual one"
    )
    keeps_mean: bool = False  # whether workers move by CHOCO's rule
    tensors: tuple[int, ...] = ()  # numbers in each tensor that is not empty
    seed: int = 0

    def of(self, tensors: tuple[int, ...], seed: int) -> Self:
        """Return the codec for models with tensors of these sizes."""
        return replace(self, tensors=tensors, seed=seed)

    @property
    @abstractmethod
    def usual_step(self) -> float:
        """The gamma of CHOCO's rule where `step` is 0.

        Koloskova (2019) proves convergence for steps in proportion to what a message keeps of a
        difference, and tunes them for each codec. These were found on a ring of eight, MATCHA and
        GossipFL with models drawn at random.
        """

    @property
    def gamma(self) -> float:
        """The step of CHOCO's rule; 0: receivers mix copies in place of models."""
        return (self.step or self.usual_step) if self.keeps_mean else 0.0

    @property
    def sends_differences(self) -> bool:
        """Whether links carry differences to a public copy, and not models."""
        return self.always_differences or self.keeps_mean

    @cached_property
    def width(self) -> int:
        """Numbers in one model, W."""
        return sum(self.tensors)

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The arrays of a message, those with the longest numbers first."""

    @abstractmethod
    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> Message:
        """Return what a link carries of a vector, in the types of `parts`.

        Args:
            vector: A model, a difference or an update, [W].
            node: Whose it is.
            t: Round in which it is sent; part of the address of randomness.
            stage: Mix stage that it feeds.
        """

    @abstractmethod
    def restored(self, message: Message, node: int) -> Vector:
        """Return the vector that a message of a node stands for, [W].

        Raises ValueError for what cannot be a message; its arrays have the sizes of `parts`.
        """

    @property
    def message_bytes(self) -> int:
        """Bytes of one message without what follows from the round."""
        return sum(part.count * np.dtype(_NUMPY[part.type]).itemsize for part in self.parts)

    @property
    def model_bytes(self) -> int:
        """Bytes of a model as it is."""
        return NUMBER_BYTES * self.width

    @property
    def most_messages(self) -> int:
        """Messages that are shorter together than a whole model; more are never sent at once."""
        return min(-(-self.model_bytes // self.message_bytes) - 1, MOST_MESSAGES)

    @property
    def moves_mean(self) -> str:
        """Why mixing moves the mean of all models although its rows would keep it.

        A worker keeps its own model whole, and others mix a copy of it that differs. What a row
        takes from a model is then not what another row adds.
        """
        return f"{self.name} sends copies that differ from the models which their owners keep"

    def applied(self, vector: Vector, node: int, t: int, stage: int = 0) -> Vector:
        """Return what receivers make of a vector; arguments as for `message`."""
        return self.restored(self.message(vector, node, t, stage), node)

    def added(self, copy: Vector, messages: Sequence[Message], node: int) -> Vector:
        """Return a public copy of a node after some of its messages, [W]."""
        after = copy.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged
            for message in messages:
                after += self.restored(message, node)
        return after


_NUMPY = {"F32": "<f4", "U32": "<u4", "I64": "<i8", "U8": "u1"}


@dataclass(frozen=True, kw_only=True)
class Int8(Codec):
    """One byte for each number, rounded at random, with a scale for each tensor."""

    name: ClassVar[str] = "int8"
    summary: ClassVar[str] = "one byte for each number"
    always_differences: ClassVar[bool] = False
    usual_step: ClassVar[float] = 1.0

    @property
    def parts(self) -> tuple[Part, ...]:
        """Scales and codes."""
        return Part("scales", "F32", len(self.tensors)), Part("codes", "U8", self.width)

    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> Message:
        """Round each number; the rounding has the address (node, t, stage)."""
        draws = uniform(self.seed, "int8", node, t, stage, np.arange(self.width))
        codes, scales = quantise(vector, self.tensors, draws)
        return {"scales": scales, "codes": codes.view(np.uint8)}

    def restored(self, message: Message, node: int) -> Vector:
        """Multiply codes by scales."""
        codes = np.asarray(message["codes"], np.uint8).view(np.int8)
        scales = np.asarray(message["scales"], np.float32)
        if (scales < 0).any():
            raise ValueError("a scale is negative")
        return dequantise(codes, scales, self.tensors)


@dataclass(frozen=True, kw_only=True)
class SparseCodec(Codec):
    """A codec that sends some numbers of a difference."""

    fraction: Annotated[float, Gt(0), Le(1)] = param(0.1, "share of the numbers that are sent")

    @property
    def kept(self) -> int:
        """Numbers that are sent."""
        return max(1, math.floor(self.fraction * self.width))

    def _spread(self, places: Ints, values: NDArray[Any]) -> Vector:
        vector = np.zeros(self.width, np.float32)
        vector[places] = values
        return vector


@dataclass(frozen=True, kw_only=True)
class TopK(SparseCodec):
    """The largest numbers. Their places are a list or, where that is shorter, a bit for each."""

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the largest numbers of a difference to a public copy"

    @property
    def usual_step(self) -> float:
        """Twice the share of the numbers that are sent."""
        return min(2 * self.fraction, 1.0)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The numbers, and where they are."""
        bits = Part("bits", "U8", -(-self.width // 8))
        is_list = NUMBER_BYTES * self.kept <= bits.count
        places = Part("places", "U32", self.kept) if is_list else bits
        return Part("values", "F32", self.kept), places

    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> Message:
        """Return the largest numbers, in ascending places."""
        places = np.sort(largest(vector, self.kept))
        if self.parts[1].name == "places":
            return {"values": vector[places], "places": places.astype(np.uint32)}
        bits = np.zeros(self.width, bool)
        bits[places] = True
        return {"values": vector[places], "bits": np.packbits(bits)}

    def restored(self, message: Message, node: int) -> Vector:
        """Put the numbers where they were."""
        return self._spread(self._places(message), message["values"])

    def _places(self, message: Message) -> Ints:
        if "places" in message:
            places = np.asarray(message["places"], np.int64)
            if (np.diff(places) <= 0).any() or places[-1] >= self.width:
                raise ValueError("places are not ascending, or beyond the model")
            return places
        places = np.flatnonzero(_unpacked(message["bits"], self.width))
        if len(places) != self.kept:
            raise ValueError(f"{len(places)} places for {self.kept} numbers")
        return places


@dataclass(frozen=True, kw_only=True)
class RandomK(SparseCodec):
    """Numbers at places that follow from the seed, and from round and stage of the message."""

    name: ClassVar[str] = "randomk"
    summary: ClassVar[str] = "numbers of a difference to a public copy, drawn from the seed"

    @property
    def usual_step(self) -> float:
        """The share of the numbers that are sent."""
        return self.fraction

    @property
    def parts(self) -> tuple[Part, ...]:
        """The address from which the places follow, and the numbers."""
        return Part("address", "I64", 2), Part("values", "F32", self.kept)

    @property
    def message_bytes(self) -> int:
        """Bytes of the numbers; the address is known from the order."""
        return NUMBER_BYTES * self.kept

    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> Message:
        """Return the numbers at the places of this address."""
        values = vector[self._places(node, t, stage)]
        return {"address": np.array([t, stage]), "values": values}

    def restored(self, message: Message, node: int) -> Vector:
        """Put the numbers where they were."""
        t, stage = np.asarray(message["address"], np.int64).tolist()
        if not (0 <= t <= MAX_ROUND and 0 <= stage <= MAX_STAGE):
            raise ValueError(f"no message has the address ({t}, {stage})")
        return self._spread(self._places(node, t, stage), message["values"])

    def _places(self, node: int, t: int, stage: int) -> Ints:
        draw = stream(self.seed, "randomk", node, t, stage)
        places: Ints = draw.choice(self.width, self.kept, replace=False, shuffle=False)
        return places


@dataclass(frozen=True, kw_only=True)
class Sign(Codec):
    """The sign of each number, and a mean magnitude for each tensor."""

    name: ClassVar[str] = "sign"
    summary: ClassVar[str] = "one bit for each number of a difference to a public copy"
    usual_step: ClassVar[float] = 0.5

    @property
    def parts(self) -> tuple[Part, ...]:
        """Magnitudes, and a bit for each number that is negative."""
        bits = Part("bits", "U8", -(-self.width // 8))
        return Part("values", "F32", len(self.tensors)), bits

    def message(self, vector: Vector, node: int, t: int, stage: int = 0) -> Message:
        """Return magnitudes and signs."""
        return {"values": magnitudes(vector, self.tensors), "bits": np.packbits(vector < 0)}

    def restored(self, message: Message, node: int) -> Vector:
        """Return each magnitude with its signs."""
        magnitude = np.asarray(message["values"], np.float32)
        if (magnitude < 0).any():
            raise ValueError("a magnitude is negative")
        scale = np.repeat(magnitude, self.tensors)
        return np.where(_unpacked(message["bits"], self.width), -scale, scale)


def _unpacked(packed: NDArray[Any], width: int) -> Bools:
    """Return one truth for each number of a model; the rest of the last byte must be empty."""
    bits = np.unpackbits(np.asarray(packed, np.uint8))
    if bits[width:].any():
        raise ValueError("bits beyond the model")
    return bits[:width].astype(bool)


CODECS: Registry[Codec] = Registry("codec", Codec, "dystop.codecs", (TopK, RandomK, Int8, Sign))


@dataclass(frozen=True)
class LinkParams:
    """What a link carries."""

    compression: Annotated[str, NameIn(CODECS, OR_NONE, is_none)] = param(
        "none", "codec; 'dystop list codecs' shows them; none: whole models"
    )
    fraction: Annotated[float, Gt(0), Le(1)] = param(
        0.1,
        "share of the numbers that topk and randomk send",
        under={"compression": lambda: CODECS.having("fraction")},
    )
    step: Annotated[float, Ge(0), Le(1)] = param(
        0.0,
        "gamma of CHOCO's rule, by which compressed mixing keeps the mean of models where the "
        "mechanism keeps it; 0: int8 1, sign 0.5, topk twice the fraction, randomk the fraction",
        under={"compression": lambda: CODECS.having("step")},
    )


def codec_of(given: LinkParams, *, keeps_mean: bool = False) -> Codec | None:
    """Return the codec that a configuration names; None where links carry whole models.

    Args:
        given: The configuration.
        keeps_mean: Whether rows of the mechanism keep the mean of all models.

    Raises:
        ConfigError: A step is given, but nothing uses it.
    """
    if given.step and (is_none(given.compression) or not keeps_mean):
        raise ConfigError(
            f"link.step = {given.step:g} is the step of CHOCO's rule, which keeps the mean of "
            "models: it needs a link.compression, aggregation.rule = 'mean', and a mechanism that "
            "keeps the mean and sends models, such as D-PSGD; leave it out"
        )
    if is_none(given.compression):
        return None
    kind: Any = CODECS[given.compression]
    shared = {"step": given.step, "keeps_mean": keeps_mean}
    if "fraction" in (field.name for field in fields(kind)):
        shared["fraction"] = given.fraction
    codec: Codec = kind(**shared)
    return codec


def describe_mean(able: Capabilities, codec: Codec | None) -> dict[str, str]:
    """Return why the mean of all models moves under a mechanism that promises to keep it.

    Header, `fleet.json` and report take it from here. Empty where the promise holds, and
    where there is none.
    """
    if codec is None or codec.keeps_mean or not able.doubly_stochastic:
        return {}
    return {MEAN: f"moved by mixing: {codec.moves_mean}"}


def mean_notice(physics: Mapping[str, str]) -> str:
    """Return a warning if mixing moves the mean of all models; empty if not.

    >>> mean_notice({})
    ''
    """
    if MEAN not in physics:
        return ""
    return (
        f"the {MEAN} is {physics[MEAN]}; this mechanism keeps the mean only with "
        "link.compression=none, or where it sends models and aggregation.rule=mean"
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
