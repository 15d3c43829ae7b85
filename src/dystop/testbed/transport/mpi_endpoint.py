"""One rank of an MPI job: a thread that sends and receives whole frames.

Only this thread calls MPI, from `Init` to `Finalize`, so the library needs no thread support. The
thread never blocks inside MPI: it probes for messages, tests what it has sent, and pauses briefly
when there is nothing to do.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dystop.errors import TransportError

_LOG = logging.getLogger(__name__)
_START_S = 120.0  # a large job starts slowly
_LEAVE_S = 60.0  # how long a rank waits for the others at the end
_SHORT_S, _LONG_S = 5e-5, 2e-3  # pauses of the thread: when busy, and when idle for long

Receive = Callable[[int, memoryview], None]
_joined: list["MpiEndpoint"] = []


def join_job() -> "MpiEndpoint":
    """Return the endpoint of this process. MPI allows one initialisation, so there is at most one.

    Raises:
        TransportError: mpi4py or MPI itself is missing, or the endpoint was closed.
    """
    if not _joined:
        _joined.append(MpiEndpoint())
    if _joined[0].closed:
        raise TransportError("this process has left its MPI job; MPI cannot be initialised twice")
    return _joined[0]


class MpiEndpoint:
    """Sends frames to other ranks and receives theirs; `join_job` returns it."""

    def __init__(self) -> None:
        self.rank, self.size, self.closed = 0, 1, False
        self._receive: Receive | None = None
        self._undelivered: deque[tuple[int, memoryview]] = deque()
        self._out: deque[tuple[int, int, bytes]] = deque()
        self._wake, self._ready = threading.Event(), threading.Event()
        self._problem, self._timeout_s = "", _LEAVE_S
        self._thread = threading.Thread(target=self._run, name="mpi", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            self._problem = f"the MPI job did not start within {_START_S:g} s"
        if self._problem:
            raise TransportError(self._problem)

    def on_frame(self, receive: Receive) -> None:
        """Set the receiver of frames; the thread calls it with the rank of the sender."""
        self._receive = receive
        self._wake.set()

    def first_frame(self, timeout_s: float, give_up: Callable[[], bool]) -> bytes:
        """Return the first frame of rank 0, or nothing on `give_up`; call it before `on_frame`."""
        until = time.monotonic() + timeout_s
        while not self._undelivered:
            if give_up():
                return b""
            if time.monotonic() > until:
                raise TransportError(f"rank 0 sent nothing for {timeout_s:g} s")
            time.sleep(_LONG_S)
        return bytes(self._undelivered.popleft()[1])

    def send(self, rank: int, tag: int, *parts: bytes | memoryview) -> None:
        """Queue a frame; frames of one tag arrive in order."""
        if not self.closed:
            self._out.append((rank, tag, b"".join(parts)))
            self._wake.set()

    def close(self, timeout_s: float = _LEAVE_S) -> None:
        """Leave the job together with all other ranks; returns when the thread has ended.

        If they do not leave within `timeout_s`, the thread ends without finalising MPI.
        """
        self._timeout_s = timeout_s
        self.closed = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            mpi = _mpi()
            mpi.Init_thread(mpi.THREAD_FUNNELED)
            comm = mpi.COMM_WORLD.Dup()
            self.rank, self.size = comm.rank, comm.size
        except Exception as error:  # the constructor reports every error of MPI
            self._problem = str(error)
            self._ready.set()
            return
        self._ready.set()
        loop = _FrameLoop(mpi, comm, self._out, self._arrived)
        pause_s = _SHORT_S
        while not self.closed:
            self._deliver()
            pause_s = _SHORT_S if loop.step() else min(2.0 * pause_s, _LONG_S)
            self._wake.wait(pause_s)
            self._wake.clear()
        if loop.leave(self._timeout_s):
            comm.Free()
            mpi.Finalize()

    def _arrived(self, rank: int, frame: memoryview) -> None:
        self._undelivered.append((rank, frame))
        self._deliver()

    def _deliver(self) -> None:
        """Deliver what has arrived; a fault in the receiver must not stop later frames."""
        while self._receive is not None and self._undelivered:
            rank, frame = self._undelivered.popleft()
            try:
                self._receive(rank, frame)
            except Exception:
                _LOG.exception("a frame of rank %d could not be handled", rank)


class _FrameLoop:
    """What the endpoint's thread does, step by step."""

    def __init__(
        self, mpi: Any, comm: Any, out: "deque[tuple[int, int, bytes]]", arrived: Receive
    ) -> None:
        self._mpi, self._comm, self._out, self._arrived = mpi, comm, out, arrived
        self._sending: list[tuple[Any, bytes]] = []  # MPI reads the bytes until it is done

    def step(self) -> bool:
        """Send, remove what is sent, receive; return whether there was anything to do."""
        sent = self._send()
        before = len(self._sending)
        self._sending = [entry for entry in self._sending if not entry[0].Test()]
        received = self._receive()
        return sent or received or len(self._sending) < before

    def _send(self) -> bool:
        busy = False
        while self._out:
            rank, tag, frame = self._out.popleft()
            self._sending.append((self._comm.Isend([frame, self._mpi.BYTE], rank, tag), frame))
            busy = True
        return busy

    def _receive(self) -> bool:
        busy = False
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            frame = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([frame, self._mpi.BYTE])
            self._arrived(status.Get_source(), memoryview(frame))
            busy = True
        return busy

    def leave(self, timeout_s: float) -> bool:
        """Wait until everything is sent and all ranks leave; False if they do not in time."""
        until, leaving = time.monotonic() + timeout_s, None
        while time.monotonic() < until:
            if not self.step():
                time.sleep(_LONG_S)
            if leaving is None and not self._sending:
                leaving = self._comm.Ibarrier()
            if leaving is not None and leaving.Test():
                return True
        _LOG.warning("the other ranks did not leave within %g s", timeout_s)
        return False


def _mpi() -> Any:
    """Import MPI so that only the endpoint's thread initialises and finalises it."""
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
        raise TransportError(
            "MPI is already initialised; do not import mpi4py.MPI before dystop joins the job"
        )
    return MPI


def names_by_rank(names: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    """Return the names at each rank: coordinator and observer at 0, then one node each.

    >>> names_by_rank(["w00", "w01"], 3)
    (('coordinator', 'observer'), ('w00',), ('w01',))
    """
    if size != len(names) + 1:
        raise TransportError(
            f"{len(names)} nodes and a coordinator need {len(names) + 1} ranks, the job has {size};"
            f" start it by: mpiexec -n {len(names) + 1} dystop testbed --transport mpi ..."
        )
    return (("coordinator", "observer"), *((name,) for name in names))
