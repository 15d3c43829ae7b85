"""An Ethernet switch in user space, with delay, jitter, loss and cuts: some kernels have no netem.

    python switch.py SEED

A port is a TAP interface inside a network namespace. The switch reads commands from standard input,
each a line of JSON, and answers each with a line: `["plug", "w00", NAMESPACE]` makes a port,
`["set", {"rtt_s": 0.2}]` changes the links, `["cut", "w00"]` and `["mend", "w00"]` act on a port,
`["count"]` returns figures. The switch ends with its standard input, and the kernel then removes
its interfaces: nothing is left, however the parent process ended.
"""

import ctypes
import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

INTERFACE = "e0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME_BYTES = 2048  # larger than any frame at an MTU of 1500
_AT_ONCE = 64  # frames read from a port before the next port
_NICE = -15  # a switch that waits for a processor would delay frames for too long

Direction = tuple[str, str]  # from one port to another


@dataclass(frozen=True)
class LinkSettings:
    """Delay and loss of the frames between two ports.

    Each direction takes half of `rtt_s` and up to `jitter_s` more: a ping takes between `rtt_s` and
    `rtt_s + 2 * jitter_s`. `loss` is a share of 1 of the frames of each direction.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


def draw_frame(seed: int, way: Direction, number: int) -> tuple[float, float]:
    """Return two numbers in [0, 1) that decide on the loss and the jitter of the n-th frame.

    They depend on the arguments only, not on other directions or on earlier losses.

    >>> draw_frame(0, ("a", "b"), 7) == draw_frame(0, ("a", "b"), 7)
    True
    >>> draw_frame(0, ("a", "b"), 7) == draw_frame(0, ("b", "a"), 7)
    False
    """
    address = f"{seed} {way[0]} {way[1]} {number}".encode()
    lost, late = struct.unpack("<2I", blake2b(address, digest_size=8).digest())
    return lost / 2**32, late / 2**32


class FrameQueue:
    """Delayed frames. Each direction delivers its frames in the order of their arrival."""

    def __init__(self, seed: int = 0) -> None:
        self.settings = LinkSettings()
        self.count: Counter[str] = Counter()
        self.late_s = 0.0  # the largest delay of a frame beyond its due time
        self._seed = seed
        self._queue: list[tuple[float, int, Direction, bytes]] = []
        self._taken: Counter[Direction] = Counter()
        self._last_s: dict[Direction, float] = {}

    def take(self, way: Direction, frame: bytes, now_s: float) -> None:
        """Accept a frame: lose it, or schedule it."""
        lost, late = draw_frame(self._seed, way, self._taken[way])
        self._taken[way] += 1
        if lost < self.settings.loss:
            self.count["lost"] += 1
            return
        due_s = now_s + self.settings.rtt_s / 2 + late * self.settings.jitter_s
        due_s = self._last_s[way] = max(due_s, self._last_s.get(way, due_s))
        self.count["taken"] += 1  # also orders frames that are due at the same time
        heapq.heappush(self._queue, (due_s, self.count["taken"], way, frame))

    def due(self, now_s: float) -> list[tuple[Direction, bytes]]:
        """Return the frames that are due by now, the oldest first."""
        out = []
        while self._queue and self._queue[0][0] <= now_s:
            due_s, _, way, frame = heapq.heappop(self._queue)
            self.late_s = max(self.late_s, now_s - due_s)
            out.append((way, frame))
        return out

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next frame is due; None if the queue is empty."""
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None


def open_tap(namespace: str) -> int:
    """Open a new interface in a namespace; it exists as long as the descriptor is open."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        _enter(libc, there.fileno())
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(
                tap, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI)
            )
        finally:
            _enter(libc, home.fileno())
    return tap


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


class Switch:
    """Ports, the addresses behind them, and the delayed frames."""

    def __init__(self, seed: int) -> None:
        self.frames = FrameQueue(seed)
        self._taps: dict[str, int] = {}
        self._cut: set[str] = set()
        self._behind: dict[bytes, str] = {}  # port where a hardware address was last seen

    def execute(self, what: str, *words: Any) -> Any:
        """Execute a command; return its answer."""
        if what == "plug":
            self._taps[words[0]] = open_tap(words[1])
        elif what == "set":
            self.frames.settings = replace(self.frames.settings, **words[0])
        elif what == "count":
            return {**self.frames.count, "late_s": round(self.frames.late_s, 4)}
        else:
            {"cut": self._cut.add, "mend": self._cut.discard}[what](words[0])
        return asdict(self.frames.settings)

    def run(self) -> None:
        """Forward frames and execute commands until standard input ends."""
        while True:
            wait_s = self.frames.wait_s(time.monotonic())
            ready = select.select([sys.stdin, *self._taps.values()], [], [], wait_s)[0]
            for name, tap in self._taps.items():
                if tap in ready:
                    self._drain(name, tap)
            for (_, port), frame in self.frames.due(time.monotonic()):
                self._deliver(port, frame)
            if sys.stdin in ready:
                command = sys.stdin.readline()
                if not command:
                    return
                print(json.dumps(self.execute(*json.loads(command))), flush=True)

    def _drain(self, name: str, tap: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                frame = os.read(tap, _FRAME_BYTES)
                if name not in self._cut:
                    self._forward(name, frame)

    def _forward(self, name: str, frame: bytes) -> None:
        """Queue a frame for the port of its receiver, or for all others if that is unknown."""
        self._behind[frame[6:12]] = name
        known = self._behind.get(frame[:6])
        for port in [known] if known else [p for p in self._taps if p != name]:
            if port != name:
                self.frames.take((name, port), frame, time.monotonic())

    def _deliver(self, port: str, frame: bytes) -> None:
        if port in self._cut:
            self.frames.count["cut"] += 1
            return
        with suppress(OSError):  # an interface that is down accepts nothing
            os.write(self._taps[port], frame)


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(_NICE)
    Switch(int(sys.argv[1])).run()
