"""The threads of a node that fetch models."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dystop.runtime.events import Fetch, Fetched, FetchFailed, Vector
from dystop.runtime.host.failpoints import reach
from dystop.runtime.params import Timeouts
from dystop.runtime.shell.fetch import fetch
from dystop.runtime.wire.interface import Transport
from dystop.runtime.wire.messages import ModelHeader, PullRequest
from dystop.runtime.wire.payload import ModelParcel, Schema, wanted
from dystop.runtime.wire.quiet import quiet_logger, shown

_LOG = quiet_logger(__name__)
AT_ONCE = 16


class Fetchers:
    """Fetches in the background; hands what came of it to `put`, unless it was abandoned."""

    def __init__(
        self,
        transport: Transport,
        schema: Schema,
        timeouts: Timeouts,
        put: Callable[[Fetched | FetchFailed], None],
    ) -> None:
        """Nothing is fetched yet."""
        self._transport, self._schema, self._timeouts = transport, schema, timeouts
        self._put = put
        self._pool = ThreadPoolExecutor(AT_ONCE, "fetch")
        self._cancelled: dict[int, threading.Event] = {}

    def begin(self, action: Fetch) -> None:
        """Fetch as soon as a thread is free."""
        cancelled = self._cancelled[action.key] = threading.Event()
        with suppress(RuntimeError):  # closed: the node ends
            self._pool.submit(self._run, action, cancelled)

    def abandon(self, key: int) -> None:
        """Give up a fetch; nothing more is heard of it."""
        cancelled = self._cancelled.get(key)
        if cancelled is not None:
            cancelled.set()

    def close(self) -> None:
        """Give up all; returns when the threads are gone."""
        for cancelled in list(self._cancelled.values()):
            cancelled.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, action: Fetch, cancelled: threading.Event) -> None:
        event: Fetched | FetchFailed
        try:
            reach("worker.before_pull")
            make = self._maker(action.request)
            event = fetch(self._transport, action, make, self._timeouts, cancelled)
        except Exception as error:  # a failpoint, or a mistake of ours: the round goes on without
            _LOG.error("fetching from %s: %s", shown(action.name), shown(repr(error)))
            event = FetchFailed(action.key, "unreachable")
        self._cancelled.pop(action.key, None)
        if not cancelled.is_set():
            self._put(event)

    def _maker(self, request: PullRequest) -> Callable[[], ModelParcel]:
        kind, kept = wanted(self._schema, request)
        return lambda: _WatchedParcel(self._schema, kind, kept)


class _WatchedParcel(ModelParcel):
    """A parcel that passes by the failpoints of a pull."""

    def begin(self, header: ModelHeader) -> None:
        super().begin(header)
        reach("worker.after_header")

    def write(self, chunk: memoryview) -> None:
        super().write(chunk)
        reach("worker.mid_chunk")

    def finish(self) -> Vector:
        vector = super().finish()
        reach("worker.after_digest")
        return vector
