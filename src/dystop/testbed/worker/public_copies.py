"""The public copies of a testbed under a codec of differences (ADR 0059).

`PublicCopy` is what others have of the own models: it advances by one message for each stage of a
round in which somebody asks, as in the simulator. `HeldCopies` are the copies of others. Both live
in memory only. After a restart the public copy is the own model, and everybody gets it whole once.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.exchange.codecs import Codec, Message
from dystop.testbed.events import Publication, Vector
from dystop.testbed.protocol.coded import HeldCopy, digest_of
from dystop.testbed.protocol.pulls import PullRequest

MAX_ASKED = 64  # newest stages of rounds that are remembered as asked for
MAX_RECENT = 3  # newest stages whose copies are kept, for requests that come late
MAX_UPDATES = 4  # newest packed updates that are kept for further receivers
Asked = tuple[int, int]  # round and stage


@dataclass(frozen=True)
class Offer:
    """What a request gets: messages, or numbers as they are."""

    model: Publication  # its vector: the whole public copy, or nothing that is sent
    messages: tuple[Message, ...] | None  # None: the vector is sent
    copy: str | None  # digest of the public copy that they lead to; None: an update


class PublicCopy:
    """What others have of the models of one worker. Safe for several threads."""

    def __init__(self, codec: Codec, node: int, initial: Vector | None) -> None:
        """Begin with the initial model that all know, or without one after a restart."""
        self._codec, self._node = codec, node
        self._model: Publication | None = None  # that the copy followed last
        self._copy = HeldCopy() if initial is None else HeldCopy(digest_of(initial), initial)
        self._steps: list[tuple[str, Message]] = []  # newest last; digest of the copy before each
        self._asked: OrderedDict[Asked, None] = OrderedDict()
        self._recent: OrderedDict[Asked, tuple[Publication, HeldCopy]] = OrderedDict()
        self._lock = threading.Lock()
        self._leftover: Vector | None = None  # what was left out of earlier updates
        self._updates: OrderedDict[tuple[int, int, bool], Offer] = OrderedDict()

    def offer(self, model: Publication, request: PullRequest) -> Offer:
        """Return what a request gets. The first one of a stage of a round advances the copy.

        Args:
            model: What the worker would serve as it is: a model, or an update.
            request: The request; `holds` names the copy that the receiver has.
        """
        asked = (request.round, request.stage)
        with self._lock:
            if request.delta:
                return self._update(model, asked, request.exact)
            return self._since(request.holds or "", *self._at(model, asked))

    def at(self, model: Publication, round_: int, stage: int) -> Vector:
        """Return the copy that requests of a stage of a round get; advance it if needed."""
        with self._lock:
            copy = self._at(model, (round_, stage))[1].vector
        assert copy is not None  # `_at` has advanced the copy
        return copy

    def _at(self, model: Publication, asked: Asked) -> tuple[Publication, HeldCopy]:
        """Return the copy of a stage, and the model that it followed.

        A late request, whose stage is not remembered any more, gets the newest copy.
        """
        is_new = asked not in self._asked
        if self._model is None or (is_new and not self._is_older(model)):
            self._advance(model, *asked)
        assert self._model is not None
        if is_new:
            _remember(self._asked, asked, None, MAX_ASKED)
            _remember(self._recent, asked, (self._model, self._copy), MAX_RECENT)
        return self._recent.get(asked, (self._model, self._copy))

    def _is_older(self, model: Publication) -> bool:
        """Return whether a late request asks for an earlier model than the one the copy follows."""
        return self._model is not None and model.version < self._model.version

    def _advance(self, model: Publication, round_: int, stage: int) -> None:
        """Add the packed difference between model and copy to the copy."""
        copy, self._model = self._copy, model
        if copy.vector is None:
            return self._begin_at(model.vector)
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged
            difference = model.vector - copy.vector
        message = self._codec.message(difference, self._node, round_, stage)
        vector = self._codec.added(copy.vector, [message], self._node)
        if not np.isfinite(vector).all():
            return self._begin_at(model.vector)
        self._copy = HeldCopy(digest_of(vector), vector)
        if self._copy.digest != copy.digest:  # otherwise the copy is the model already
            self._steps.append((copy.digest, message))
        del self._steps[: max(0, len(self._steps) - self._codec.most_messages)]

    def _begin_at(self, vector: Vector) -> None:
        """Take a model as the copy; all receivers need it whole."""
        vector = np.ascontiguousarray(vector, np.float32)
        self._copy, self._steps = HeldCopy(digest_of(vector), vector), []

    def _since(self, held: str, model: Publication, copy: HeldCopy) -> Offer:
        """Return the messages from a held copy to another one, or that one whole."""
        assert copy.vector is not None
        model = replace(model, vector=copy.vector)
        if held == copy.digest:
            return Offer(model, (), copy.digest)
        digests = [*(before for before, _ in self._steps), self._copy.digest]
        end = digests.index(copy.digest) if copy.digest in digests else 0
        known = digests.index(held) if held in digests[:end] else None
        messages = None if known is None else tuple(step for _, step in self._steps[known:end])
        return Offer(model, messages, copy.digest)

    def _update(self, update: Publication, asked: Asked, exact: bool) -> Offer:
        """Return a packed update; what it leaves out is added to the next one."""
        if (key := (*asked, exact)) in self._updates:
            return self._updates[key]
        left = self._leftover
        whole = update.vector if left is None else update.vector + left
        message = self._codec.message(whole, self._node, *asked)
        rest = whole - self._codec.restored(message, self._node)
        self._leftover = rest if np.isfinite(rest).all() else None
        offer = Offer(update, (message,), None)
        _remember(self._updates, key, offer, MAX_UPDATES)
        return offer


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Add an entry to a memory, which keeps the newest ones."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > most:
        memory.popitem(last=False)


class HeldCopies:
    """The public copies of others that a worker holds. Safe for several threads.

    >>> copies = HeldCopies(np.zeros(2, np.float32), most=1)
    >>> copies.keep(7, HeldCopy("ab", np.ones(2, np.float32)))
    >>> copies.of(7).digest, copies.of(8).vector.tolist()
    ('ab', [0.0, 0.0])
    """

    def __init__(self, initial: Vector, most: int) -> None:
        """Begin with the initial model as everybody's copy.

        Args:
            initial: The initial model of the run.
            most: Copies to hold; a peer whose copy was dropped sends a whole one.
        """
        self._initial = HeldCopy(digest_of(initial), initial)
        self._most = most
        self._copies: OrderedDict[int, HeldCopy] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, node: int) -> HeldCopy:
        """Return the copy of a peer."""
        with self._lock:
            return self._copies.get(node, self._initial)

    def keep(self, node: int, copy: HeldCopy | None) -> None:
        """Replace the copy of a peer; None: forget it."""
        with self._lock:
            if copy is None:
                self._copies.pop(node, None)
            else:
                _remember(self._copies, node, copy, self._most)
