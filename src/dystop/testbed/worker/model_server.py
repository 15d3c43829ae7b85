"""Models on their way out: packed and digested once, whoever fetches them and however often."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from dystop.testbed.events import Asked, AskedNoMore, Publication, Vector
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.protocol.messages import ModelHeader, PullRefused, PullRequest
from dystop.testbed.protocol.payload import Kind, Schema, digest, kept_of, wanted
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.history import Watch, form_of

_LOG = throttled_logger(__name__)
KEPT = 8  # packed models that are kept: a few publications in one form or two
Parts = tuple[memoryview, ...]
Answer = ServedModel | PullRefused


class ModelEncoder:
    """Packs and digests; remembers the last few. Used from several threads."""

    def __init__(self, schema: Schema) -> None:
        """Packs models of this schema."""
        self._schema = schema
        self._lock = threading.Lock()
        self._digests: OrderedDict[int, tuple[Vector, str]] = OrderedDict()
        self._packed: OrderedDict[tuple[int, str], tuple[Parts, str]] = OrderedDict()

    def digest(self, vector: Vector) -> str:
        """SHA-256 of the payload that holds this model; worked out once per vector."""
        with self._lock:
            known = self._digests.get(id(vector))
            if known is not None and known[0] is vector:
                return known[1]
        made = digest(self._schema.pack(_plain(vector)))
        with self._lock:
            self._digests[id(vector)] = (vector, made)
            while len(self._digests) > KEPT:
                self._digests.popitem(last=False)
        return made

    def shipment(self, model: Publication, request: PullRequest) -> ServedModel:
        """A publication in the form that was asked for, from the byte that was asked for."""
        parts, made = self._pack(model, request)
        size = sum(len(part) for part in parts)
        goes_on = request.version == model.version and request.offset <= size
        header = ModelHeader(
            version=model.version,
            number=model.number,
            round=model.round,
            size=size,
            sha256=made,
            schema=self._schema.hash,
            offset=request.offset if goes_on else 0,
        )
        return ServedModel(header, parts, request.bytes_per_s)

    def _pack(self, model: Publication, request: PullRequest) -> tuple[Parts, str]:
        key = (model.version, form_of(request) + ("+delta" if request.delta else ""))
        with self._lock:
            if key in self._packed:
                self._packed.move_to_end(key)
                return self._packed[key]
        kind, kept = wanted(self._schema, request)
        parts, made = self._make(model.vector, request, kind, kept)
        with self._lock:
            self._packed[key] = (parts, made)
            while len(self._packed) > KEPT:
                self._packed.popitem(last=False)
        return parts, made

    def _make(
        self, vector: Vector, request: PullRequest, kind: Kind, kept: int | None
    ) -> tuple[Parts, str]:
        if kind == "model":
            return self._schema.pack(_plain(vector)), self.digest(vector)
        if request.mask is not None:
            vector = vector[kept_of(request.mask, self._schema.width)]
        parts = self._schema.pack(_plain(vector), kind, kept)
        return parts, digest(parts)


def _plain(vector: Vector) -> Vector:
    return np.ascontiguousarray(vector, np.float32)


class PublishedModelServer:
    """Implements `wire.interface.Store`: asks the machine, packs in a thread of its own."""

    def __init__(
        self, packer: ModelEncoder, watch: Watch, put: Callable[[Asked | AskedNoMore], None]
    ) -> None:
        """Hands what peers want to `put`; the node answers with `serve`."""
        self._packer, self._watch, self._put = packer, watch, put
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[Answer], PullRequest]] = {}
        self._pusher = ThreadPoolExecutor(1, "pusher")

    def requested(self, name: str, request: PullRequest) -> "Future[Answer]":
        """A peer wants a model."""
        future: Future[Answer] = Future()
        with self._lock:
            key = next(self._keys)
            self._waiting[key] = (future, request)
        future.add_done_callback(lambda done: self._gone(key, done))
        self._put(Asked(key, name, request))
        return future

    def _gone(self, key: int, future: "Future[Answer]") -> None:
        with self._lock:
            waited = self._waiting.pop(key, None) is not None
        if waited and future.cancelled():
            self._put(AskedNoMore(key))

    def serve(self, key: int, answer: Publication | PullRefused) -> None:
        """Answer a peer, if it still waits."""
        with self._lock:
            future, request = self._waiting.pop(key, (None, None))
        if future is None or request is None:
            return
        if isinstance(answer, PullRefused):
            _answer(future, answer)
        else:
            with suppress(RuntimeError):  # closed
                self._pusher.submit(self._push, future, request, answer)

    def _push(self, future: "Future[Answer]", request: PullRequest, model: Publication) -> None:
        try:
            shipment = self._packer.shipment(model, request)
        except Exception:  # the peer must get an answer
            _LOG.exception("a model could not be packed")
            _answer(future, PullRefused("no_model"))
            return
        self._watch.served(model, request, shipment.header.sha256)
        _answer(future, shipment)

    def close(self) -> None:
        """Refuse whoever waits."""
        self._pusher.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            waiting = [future for future, _ in self._waiting.values()]
            self._waiting.clear()
        for future in waiting:
            _answer(future, PullRefused("no_model"))


def _answer(future: "Future[Answer]", answer: Answer) -> None:
    with suppress(InvalidStateError):  # it was cancelled
        future.set_result(answer)
