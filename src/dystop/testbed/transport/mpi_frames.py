"""One process's share in an MPI job: a thread that sends and receives whole frames.

All calls into MPI, from `Init` to `Finalize`, are made by this one thread, so the library need not
support threads at all. It never blocks inside MPI: it looks for messages, tests what it has sent,
and pauses a little when there is nothing to do.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dystop.testbed.protocol.interface import TransportError

_LOG = logging.getLogger(__name__)
_START_S = 120.0  # a large job takes a while to come together
_FAREWELL_S = 60.0  # how long the others are waited for at the end
_SHORT_S, _LONG_S = 5e-5, 2e-3  # pauses of the pump: at work, and when it has long been quiet

Receive = Callable[[int, memoryview], None]
_joined: list["MpiLine"] = []


def join_job() -> "MpiLine":
    """This process's line; MPI can be entered only once, so there is one at most.

    Raises:
        TransportError: Where mpi4py or MPI itself is missing, or the line was closed.
    """
    if not _joined:
        _joined.append(MpiLine())
    if _joined[0].closed:
        raise TransportError("this process has left its MPI job; MPI cannot be entered twice")
    return _joined[0]


class MpiLine:
    """Frames to and from the other ranks; use `join_job` to get it."""

    def __init__(self) -> None:
        self.rank, self.size, self.closed = 0, 1, False
        self._receive: Receive | None = None
        self._early: deque[tuple[int, memoryview]] = deque()  # came before anybody wanted it
        self._out: deque[tuple[int, int, bytes]] = deque()
        self._wake, self._ready = threading.Event(), threading.Event()
        self._problem, self._patience_s = "", _FAREWELL_S
        self._thread = threading.Thread(target=self._run, name="mpi-line", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            self._problem = f"the MPI job did not come together within {_START_S:g} s"
        if self._problem:
            raise TransportError(self._problem)

    def on_frame(self, receive: Receive) -> None:
        """Say who takes the frames; called by the line's thread, with the rank of the sender."""
        self._receive = receive
        self._wake.set()

    def first_word(self, patience_s: float, give_up: Callable[[], bool]) -> bytes:
        """Return the first frame of rank 0, or nothing to `give_up`; to call before `on_frame`."""
        until = time.monotonic() + patience_s
        while not self._early:
            if give_up():
                return b""
            if time.monotonic() > until:
                raise TransportError(f"rank 0 has said nothing for {patience_s:g} s")
            time.sleep(_LONG_S)
        return bytes(self._early.popleft()[1])

    def send(self, rank: int, tag: int, *parts: bytes | memoryview) -> None:
        """Queue a frame; frames of one tag arrive in order."""
        if not self.closed:
            self._out.append((rank, tag, b"".join(parts)))
            self._wake.set()

    def close(self, patience_s: float = _FAREWELL_S) -> None:
        """Leave the job, together with all other ranks; returns when the thread is gone.

        Without them, and without a farewell to MPI, if they do not come within `patience_s`.
        """
        self._patience_s = patience_s
        self.closed = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            mpi = _mpi()
            mpi.Init_thread(mpi.THREAD_FUNNELED)
            comm = mpi.COMM_WORLD.Dup()
            self.rank, self.size = comm.rank, comm.size
        except Exception as error:  # whatever MPI says, the caller is told
            self._problem = str(error)
            self._ready.set()
            return
        self._ready.set()
        pump = _Pump(mpi, comm, self._out, self._take)
        pause_s = _SHORT_S
        while not self.closed:
            self._catch_up()
            pause_s = _SHORT_S if pump.turn() else min(2.0 * pause_s, _LONG_S)
            self._wake.wait(pause_s)
            self._wake.clear()
        if pump.farewell(self._patience_s):
            comm.Free()
            mpi.Finalize()

    def _take(self, rank: int, frame: memoryview) -> None:
        self._early.append((rank, frame))
        self._catch_up()

    def _catch_up(self) -> None:
        """Hand on what has come; a receiver's mistake must not stop everybody's mail."""
        while self._receive is not None and self._early:
            rank, frame = self._early.popleft()
            try:
                self._receive(rank, frame)
            except Exception:
                _LOG.exception("a frame of rank %d could not be handled", rank)


class _Pump:
    """The work of the line's thread, turn by turn."""

    def __init__(
        self, mpi: Any, comm: Any, out: "deque[tuple[int, int, bytes]]", take: Receive
    ) -> None:
        self._mpi, self._comm, self._out, self._take = mpi, comm, out, take
        self._under_way: list[tuple[Any, bytes]] = []  # MPI reads the bytes until it is done

    def turn(self) -> bool:
        """Send, tidy up and receive what there is; whether there was anything."""
        sent = self._send()
        before = len(self._under_way)
        self._under_way = [entry for entry in self._under_way if not entry[0].Test()]
        received = self._receive()
        return sent or received or len(self._under_way) < before

    def _send(self) -> bool:
        any_ = False
        while self._out:
            rank, tag, frame = self._out.popleft()
            self._under_way.append((self._comm.Isend([frame, self._mpi.BYTE], rank, tag), frame))
            any_ = True
        return any_

    def _receive(self) -> bool:
        any_ = False
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            frame = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([frame, self._mpi.BYTE])
            self._take(status.Get_source(), memoryview(frame))
            any_ = True
        return any_

    def farewell(self, patience_s: float) -> bool:
        """Wait until all ranks want to leave and all is sent; False if they do not in time."""
        until, leaving = time.monotonic() + patience_s, None
        while time.monotonic() < until:
            if not self.turn():
                time.sleep(_LONG_S)
            if leaving is None and not self._under_way:
                leaving = self._comm.Ibarrier()
            if leaving is not None and leaving.Test():
                return True
        _LOG.warning("the other ranks did not leave within %g s", patience_s)
        return False


def _mpi() -> Any:
    """The library, entered and left by nobody but the line's thread."""
    try:
        import mpi4py
    except ImportError:
        raise TransportError(
            "testbed.transport = 'mpi' needs mpi4py; install it by: pip install 'dystop[mpi]'"
        ) from None
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(f"mpi4py finds no MPI library; install one: {error}") from None
    if MPI.Is_initialized():
        raise TransportError("MPI was entered before dystop could; import no mpi4py.MPI yourself")
    return MPI


def seats(names: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    """Who sits at which rank: coordinator and observer at 0, then the nodes, one each.

    >>> seats(["w00", "w01"], 3)
    (('coordinator', 'observer'), ('w00',), ('w01',))
    """
    if size != len(names) + 1:
        raise TransportError(
            f"{len(names)} nodes and a coordinator need {len(names) + 1} ranks, the job has {size};"
            f" start it by: mpiexec -n {len(names) + 1} dystop testbed --transport mpi ..."
        )
    return (("coordinator", "observer"), *((name,) for name in names))
