"""Serve published models: encode each one once, and answer the pulls of peers.

A peer gets as many models as its orders can name.
"""

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np

from dystop.testbed.events import (
    PeerIncident,
    Publication,
    PullRequested,
    PullWithdrawn,
    Vector,
)
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.protocol.coded import pack_messages
from dystop.testbed.protocol.messages import IncidentKind
from dystop.testbed.protocol.payload import Kind, Schema, digest, kept_of, wanted
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.history import EventLogger, form_of
from dystop.testbed.worker.outgoing import Outgoing
from dystop.testbed.worker.public_copies import PublicCopy
from dystop.testbed.worker.published_models import names_publication

_LOG = throttled_logger(__name__)
OVER_BUDGET_S = 1.0  # after which a peer that pulls too often may ask again
MAX_ENCODED = 8  # encoded models that are cached: a few publications in one or two forms
MAX_RESERVE = 64  # rounds whose models one peer may pull before the worker knows them
RESERVE_PER_S = 2.0
Parts = tuple[memoryview, ...]
Answer = ServedModel | PullRefused


class ModelEncoder:
    """Encodes models and computes digests; caches the last few.

    Any thread may ask for a digest. One thread asks for served models.
    """

    def __init__(self, schema: Schema, copy: PublicCopy | None = None) -> None:
        """`copy`: what others have of the own models, under a codec of differences."""
        self._schema, self._copy = schema, copy
        self._lock = threading.Lock()
        self._digests: OrderedDict[int, tuple[Vector, str]] = OrderedDict()
        self._encoded: OrderedDict[tuple[int, str], tuple[Parts, str]] = OrderedDict()
        self._coded: OrderedDict[PullRequest, ServedModel] = OrderedDict()

    def digest(self, vector: Vector) -> str:
        """Return the SHA-256 of the payload of this model; computed once per vector."""
        with self._lock:
            known = self._digests.get(id(vector))
            if known is not None and known[0] is vector:
                return known[1]
        made = digest(self._schema.pack(_contiguous(vector)))
        with self._lock:
            self._digests[id(vector)] = (vector, made)
            while len(self._digests) > MAX_ENCODED:
                self._digests.popitem(last=False)
        return made

    def served_model(self, model: Publication, request: PullRequest) -> ServedModel:
        """Return a publication in the requested form, from the requested byte on."""
        if self._copy is not None and request.holds is not None:
            return self._served_coded(self._copy, model, request)
        parts, made = self._encode(model, request)
        size = sum(len(part) for part in parts)
        resumes = request.version == model.version and request.offset <= size
        header = ModelHeader(
            version=model.version,
            number=model.number,
            round=model.round,
            size=size,
            sha256=made,
            schema=self._schema.hash,
            offset=request.offset if resumes else 0,
        )
        return ServedModel(header, parts, request.bytes_per_s)

    def _served_coded(
        self, copy: PublicCopy, model: Publication, request: PullRequest
    ) -> ServedModel:
        """Return the same bytes for the same stage of a round and the same held copy."""
        key = replace(request, version=0, offset=0, bytes_per_s=0.0)
        served = self._coded.get(key) or self._code(copy, model, request)
        self._coded[key] = served
        while len(self._coded) > MAX_ENCODED:
            self._coded.popitem(last=False)
        header = served.header
        resumes = request.version == header.version and request.offset <= header.size
        header = replace(header, offset=request.offset if resumes else 0)
        return ServedModel(header, served.parts, request.bytes_per_s)

    def _code(self, copy: PublicCopy, model: Publication, request: PullRequest) -> ServedModel:
        offer, codec = copy.offer(model, request), self._schema.codec
        assert codec is not None  # there would be no public copy
        if offer.messages is None:
            parts = self._schema.pack(offer.model.vector)
        else:
            parts = pack_messages(codec, offer.messages)
        header = ModelHeader(
            version=offer.model.version,
            number=offer.model.number,
            round=offer.model.round,
            size=sum(len(part) for part in parts),
            sha256=digest(parts),
            schema=self._schema.hash,
            copy=offer.copy,
            messages=None if offer.messages is None else len(offer.messages),
        )
        return ServedModel(header, parts)

    def _encode(self, model: Publication, request: PullRequest) -> tuple[Parts, str]:
        key = (model.version, form_of(request) + ("+delta" if request.delta else ""))
        with self._lock:
            if key in self._encoded:
                self._encoded.move_to_end(key)
                return self._encoded[key]
        kind, kept = wanted(self._schema, request)
        parts, made = self._encode_form(model.vector, request, kind, kept)
        with self._lock:
            self._encoded[key] = (parts, made)
            while len(self._encoded) > MAX_ENCODED:
                self._encoded.popitem(last=False)
        return parts, made

    def _encode_form(
        self, vector: Vector, request: PullRequest, kind: Kind, kept: int | None
    ) -> tuple[Parts, str]:
        if kind == "model":
            return self._schema.pack(_contiguous(vector)), self.digest(vector)
        if request.mask is not None:
            vector = vector[kept_of(request.mask, self._schema.width)]
        parts = self._schema.pack(_contiguous(vector), kind, kept)
        return parts, digest(parts)


def _contiguous(vector: Vector) -> Vector:
    return np.ascontiguousarray(vector, np.float32)


class PullBudget:
    """How many models each peer may pull. Safe for several threads.

    An order names each neighbour at most once per stage. So a peer that obeys the coordinator pulls
    at most one model per stage and round from a worker. The worker learns the round from its own
    orders and from the heartbeats of the coordinator. A reserve allows for pulls that are repeated
    after a break and for rounds that the worker does not know yet.

    >>> budget = PullBudget(clock=lambda: 0.0)
    >>> sum(budget.take("w01") for _ in range(100)), budget.take("w02")
    (64, True)
    >>> budget.joined(5); budget.round_known(8, stages=2); budget.round_known(7)
    >>> sum(budget.take("w01") for _ in range(100))
    6
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._round = 0
        self._stages = 1
        self._ordered = 0.0  # models that the rounds so far can have ordered from one peer
        self._left: dict[str, tuple[float, float, float]] = {}  # models, `_ordered`, time

    def joined(self, round_: int) -> None:
        """Register the round at a join; it is an earlier one if the ledger was restored."""
        with self._lock:
            self._round = round_

    def round_known(self, round_: int, stages: int = 0) -> None:
        """Register a round of the coordinator, and the number of stages of an order."""
        with self._lock:
            self._stages = stages or self._stages
            self._ordered += self._stages * max(0, round_ - self._round)
            self._round = max(round_, self._round)

    def take(self, peer: str) -> bool:
        """Count a model for a peer; return whether the peer may have it."""
        with self._lock:
            now_s = self._clock()
            most = float(MAX_RESERVE * self._stages)
            left, ordered, since_s = self._left.get(peer, (most, self._ordered, now_s))
            left += self._ordered - ordered + RESERVE_PER_S * (now_s - since_s)
            left = min(left, most)
            is_enough = left >= 1.0
            self._left[peer] = (left - is_enough, self._ordered, now_s)
            return is_enough


class PublishedModelServer:
    """Passes requests to the machine, and encodes its answers in a thread of its own.

    Implements `transport.interface.ModelSource`.
    """

    def __init__(
        self,
        encoder: ModelEncoder,
        logger: EventLogger,
        put: Callable[[PullRequested | PullWithdrawn | PeerIncident], None],
        outgoing: Outgoing,
    ) -> None:
        """Pass the requests of peers to `put`; the process calls `answer`."""
        self._encoder, self._logger, self._put = encoder, logger, put
        self.budget = PullBudget()
        self._outgoing = outgoing
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[Answer], PullRequest]] = {}
        self._pushing = ThreadPoolExecutor(1, "pushing")

    def requested(self, name: str, request: PullRequest) -> "Future[Answer]":
        """Pass a request of a peer to the machine; return its future answer.

        A peer that pulls more often than its orders can name is refused here, at little cost.
        """
        future: Future[Answer] = Future()
        if not self.budget.take(name):
            self.incident(name, "flood", "it pulls more models than the rounds can have ordered")
            future.set_result(PullRefused("busy", OVER_BUDGET_S))
            return future
        with self._lock:
            key = next(self._keys)
            self._waiting[key] = (future, request)
        future.add_done_callback(lambda done: self._on_done(key, done))
        self._put(PullRequested(key, name, request))
        return future

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Pass to the machine what a peer did wrong."""
        self._put(PeerIncident(name, kind, text))

    def _on_done(self, key: int, future: "Future[Answer]") -> None:
        with self._lock:
            was_waiting = self._waiting.pop(key, None) is not None
        if was_waiting and future.cancelled():
            self._put(PullWithdrawn(key))

    def answer(self, key: int, answer: Publication | PullRefused) -> None:
        """Answer a peer if it still waits."""
        with self._lock:
            future, request = self._waiting.pop(key, (None, None))
        if future is None or request is None:
            return
        if isinstance(answer, PullRefused):
            _set_result(future, answer)
        else:
            with suppress(RuntimeError):  # the server is closed
                self._pushing.submit(self._push, future, request, answer)

    def _push(self, future: "Future[Answer]", request: PullRequest, model: Publication) -> None:
        try:
            served = self._encoder.served_model(self._outgoing.served(model), request)
        except Exception:  # the peer must get an answer
            _LOG.exception("a model could not be encoded")
            _set_result(future, PullRefused("no_model"))
            return
        if names_publication(request) and served.header.version != request.version:
            _set_result(future, PullRefused("no_model"))  # the public copy follows another model
            return
        self._logger.served(served.header, request)
        _set_result(future, served)

    def close(self) -> None:
        """Refuse all waiting peers."""
        self._pushing.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            waiting = [future for future, _ in self._waiting.values()]
            self._waiting.clear()
        for future in waiting:
            _set_result(future, PullRefused("no_model"))


def _set_result(future: "Future[Answer]", answer: Answer) -> None:
    with suppress(InvalidStateError):  # it was cancelled
        future.set_result(answer)
