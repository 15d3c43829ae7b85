"""An Ethernet switch in user space, with delay, jitter, loss and cuts: some kernels have no netem.

    python switch.py SEED

A port is a TAP interface inside a network namespace. Orders come on standard input, each a line of
JSON, and each is answered by a line: `["plug", "w00", NAMESPACE]` makes a port,
`["set", {"rtt_s": 0.2}]` changes the lines, `["cut", "w00"]` and `["mend", "w00"]` act on a port,
`["count"]` asks for figures. With the end of standard input the switch ends, and the kernel
removes its interfaces: nothing is left, however its owner died.
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
_FRAME_BYTES = 2048  # more than a frame of an interface with 1500
_AT_ONCE = 64  # frames taken from a port before the others have their turn
_NICE = -15  # a switch that waits for a processor would delay more than it was told to

Way = tuple[str, str]  # from one port to another


@dataclass(frozen=True)
class Lines:
    """What happens to a frame between two ports.

    Each way takes half of `rtt_s` and up to `jitter_s` more: a ping takes between `rtt_s` and
    `rtt_s + 2 * jitter_s`. `loss` is a share of 1, of each way.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


def fate(seed: int, way: Way, number: int) -> tuple[float, float]:
    """Two numbers in [0, 1): whether the n-th frame of a way is lost, and how late it is.

    They hang on the address only, not on what other ways carry or what was lost before.

    >>> fate(0, ("a", "b"), 7) == fate(0, ("a", "b"), 7) != fate(0, ("b", "a"), 7)
    True
    """
    address = f"{seed} {way[0]} {way[1]} {number}".encode()
    lost, late = struct.unpack("<2I", blake2b(address, digest_size=8).digest())
    return lost / 2**32, late / 2**32


class UnderWay:
    """Frames between two ports. They leave a way in the order in which they came."""

    def __init__(self, seed: int = 0) -> None:
        self.lines = Lines()
        self.count: Counter[str] = Counter()
        self.late_s = 0.0  # most that a frame was handed out after its time
        self._seed = seed
        self._queue: list[tuple[float, int, Way, bytes]] = []
        self._taken: Counter[Way] = Counter()
        self._last_s: dict[Way, float] = {}

    def take(self, way: Way, frame: bytes, now_s: float) -> None:
        """A frame has come in; it is lost at once, or due later."""
        lost, late = fate(self._seed, way, self._taken[way])
        self._taken[way] += 1
        if lost < self.lines.loss:
            self.count["lost"] += 1
            return
        due_s = now_s + self.lines.rtt_s / 2 + late * self.lines.jitter_s
        due_s = self._last_s[way] = max(due_s, self._last_s.get(way, due_s))
        self.count["taken"] += 1  # also tells apart frames that are due at the same time
        heapq.heappush(self._queue, (due_s, self.count["taken"], way, frame))

    def due(self, now_s: float) -> list[tuple[Way, bytes]]:
        """What has to be handed out by now, the oldest first."""
        out = []
        while self._queue and self._queue[0][0] <= now_s:
            due_s, _, way, frame = heapq.heappop(self._queue)
            self.late_s = max(self.late_s, now_s - due_s)
            out.append((way, frame))
        return out

    def wait_s(self, now_s: float) -> float | None:
        """Until the next frame is due; None: there is none."""
        return max(0.0, self._queue[0][0] - now_s) if self._queue else None


def open_tap(namespace: str) -> int:
    """A new interface in a namespace, for as long as the descriptor is open."""
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
    """Ports, who is behind them, and what is under way."""

    def __init__(self, seed: int) -> None:
        self.under_way = UnderWay(seed)
        self._taps: dict[str, int] = {}
        self._cut: set[str] = set()
        self._behind: dict[bytes, str] = {}  # port at which an address was last seen

    def obey(self, what: str, *words: Any) -> Any:
        """Carry out an order; answers what is to be said."""
        if what == "plug":
            self._taps[words[0]] = open_tap(words[1])
        elif what == "set":
            self.under_way.lines = replace(self.under_way.lines, **words[0])
        elif what == "count":
            return {**self.under_way.count, "late_s": round(self.under_way.late_s, 4)}
        else:
            {"cut": self._cut.add, "mend": self._cut.discard}[what](words[0])
        return asdict(self.under_way.lines)

    def run(self) -> None:
        """Work until standard input ends."""
        while True:
            wait_s = self.under_way.wait_s(time.monotonic())
            ready = select.select([sys.stdin, *self._taps.values()], [], [], wait_s)[0]
            for name, tap in self._taps.items():
                if tap in ready:
                    self._drain(name, tap)
            for (_, port), frame in self.under_way.due(time.monotonic()):
                self._hand_out(port, frame)
            if sys.stdin in ready:
                order = sys.stdin.readline()
                if not order:
                    return
                print(json.dumps(self.obey(*json.loads(order))), flush=True)

    def _drain(self, name: str, tap: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                frame = os.read(tap, _FRAME_BYTES)
                if name not in self._cut:
                    self._forward(name, frame)

    def _forward(self, name: str, frame: bytes) -> None:
        """To the port behind which the receiver was seen, else to all others."""
        self._behind[frame[6:12]] = name
        known = self._behind.get(frame[:6])
        for port in [known] if known else [p for p in self._taps if p != name]:
            if port != name:
                self.under_way.take((name, port), frame, time.monotonic())

    def _hand_out(self, port: str, frame: bytes) -> None:
        if port in self._cut:
            self.under_way.count["cut"] += 1
            return
        with suppress(OSError):  # an interface that is not up takes nothing, as a dead cable
            os.write(self._taps[port], frame)


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(_NICE)
    Switch(int(sys.argv[1])).run()
