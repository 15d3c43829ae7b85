"""Networks for fault tests: measured rates and delays, networks with delay, and partitions."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dystop.errors import ConfigError
from dystop.testbed.launch.netns import VirtualNetwork, _call, check_possible

LEAST, MOST = 0.92, 1.04  # allowed shares of the configured rate
TRIES = 4
SLACK_MS = 5.0  # that a ping may take longer on a busy machine
_PORT = 7070
_COUNTERS, _SEGMENT_BYTES = ("cat", "/proc/net/netstat"), 1448

_SINK = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
peer, _ = server.accept()
for _ in range(4):
    peer.recv(65536)
began, got = time.monotonic(), 0
while piece := peer.recv(65536):
    got += len(piece)
print(json.dumps([got, time.monotonic() - began]), flush=True)
"""
_SOURCE = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    peer.sendall(bytes(16384))
"""


def why_not() -> str:
    """Return why this machine has no namespaces; empty if it has."""
    try:
        check_possible()
        with VirtualNetwork():
            return ""
    except (ConfigError, OSError) as error:
        return str(error).replace("--netns needs", "network namespaces need", 1).split(";")[0]


def needs_namespaces() -> None:
    """Skip the test if this machine has no namespaces."""
    if reason := why_not():
        pytest.skip(reason)


def needs_taps() -> None:
    """Skip the test if this machine cannot run a `DelayedNetwork`."""
    needs_namespaces()
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("TAP interfaces need /dev/net/tun")
    if shutil.which("ping") is None:
        pytest.skip("delays are measured with ping (package iputils-ping)")


def goodput_mbit(net: VirtualNetwork, source: str, sink: str, seconds: float = 3.0) -> float:
    """Return the megabits per second of a plain socket from one member to another."""
    place = [net.address(sink), str(_PORT)]
    receiver = subprocess.Popen(
        [*net.prefix(sink), sys.executable, "-c", _SINK, *place],
        stdout=subprocess.PIPE,
    )
    assert receiver.stdout is not None
    try:
        receiver.stdout.readline()
        sender = [*net.prefix(source), sys.executable, "-c", _SOURCE, *place, f"{seconds:g}"]
        subprocess.run(sender, check=True, timeout=seconds + 20)
        got, took_s = json.loads(receiver.stdout.readline())
        return float(8e-6 * got / took_s)
    finally:
        receiver.kill()
        receiver.wait()
        receiver.stdout.close()


def check_rate(net: VirtualNetwork, rates: Mapping[str, float], pair: tuple[str, str]) -> float:
    """Return the measured share of a link's rate. Raises ConfigError if it is out of bounds."""
    wanted, share = min(rates[name] for name in pair), 0.0
    for _ in range(TRIES):  # a busy machine needs more than one try
        share = goodput_mbit(net, *pair) / wanted
        if LEAST <= share <= MOST:
            return share
    raise ConfigError(
        f"the link {pair[0]} -> {pair[1]} is set to {wanted:g} Mbit/s but brings "
        f"{100 * share:.0f} %; faults would be measured on the wrong network"
    )


class DelayedNetwork(VirtualNetwork):
    """Members on our own switch (see `switch`): delay, jitter and loss drawn from a seed.

    Rates apply to what a member sends only.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._command = [sys.executable, str(Path(__file__).with_name("switch.py")), str(seed)]
        self.process: subprocess.Popen[str] | None = None

    def _send(self, *words: Any) -> Any:
        """Send a command to the switch and return its answer; the first command starts it."""
        if self.process is None:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self.process.stdin
        assert self.process.stdout
        answer = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            raise ConfigError(f"the switch has ended at {words}; see its standard error")
        return json.loads(answer)

    def add(self, name: str, rate_mbit: float = 0.0) -> str:
        """Add a member that sends at this rate (0: without a limit)."""
        self._port[name] = len(self._port) + 1
        space, subnet = self.namespace(name), self.address(name).rpartition(".")[0] + ".0/24"
        self._new(space)
        self._send("plug", name, space)
        for device in ("lo", "e0"):
            _call("ip", "-n", space, "link", "set", device, "up")
        _call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "e0")
        with suppress(ConfigError):  # a kernel without cubic keeps its own choice
            _call("ip", "-n", space, "route", "replace", subnet, "dev", "e0", "congctl", "cubic")
        if rate_mbit:
            self.shape(name, rate_mbit)
        return self.address(name)

    def shape(self, name: str, rate_mbit: float) -> None:
        """Set the rate at which a member sends."""
        how = ["rate", f"{max(1, round(1000 * rate_mbit))}kbit", "burst", "32kb"]
        words = ["tc", "qdisc", "replace", "dev", "e0", "root", "tbf", *how, "latency", "100ms"]
        self._inside(name, *words)

    def delay(self, rtt_s: float, jitter_s: float = 0.0) -> None:
        """Set the round-trip time; jitter adds up to `2 * jitter_s` to it."""
        self._send("set", {"rtt_s": rtt_s, "jitter_s": jitter_s})

    def loss(self, percent: float) -> None:
        """Lose this share of the frames of every direction."""
        self._send("set", {"loss": percent / 100})

    def cut(self, name: str) -> None:
        """Disconnect a member; the others get no signal."""
        self._send("cut", name)

    def heal(self, name: str) -> None:
        """Connect a member again."""
        self._send("mend", name)

    def count(self) -> dict[str, float]:
        """Return the numbers of frames taken, lost and cut, and the largest lateness of one."""
        return dict(self._send("count"))

    def close(self) -> None:
        """End the switch and its interfaces, then remove everything else."""
        process, self.process = self.process, None
        if process:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)  # it ends with its standard input
            process.kill()
            process.wait()
        super().close()


def ping_ms(net: VirtualNetwork, source: str, sink: str, count: int = 20) -> list[float]:
    """Return the milliseconds of pings, after one that resolves the address."""
    output = ""
    for number in (1, count):
        words = ["ping", "-n", "-i", "0.05", "-W", "1", "-c", str(number), net.address(sink)]
        done = subprocess.run(
            [*net.prefix(source), *words], capture_output=True, text=True, check=False, timeout=60
        )
        output = done.stdout
    return [float(ms) for ms in re.findall(r"time=([\d.]+) ms", output)]


def check_rtt(
    net: VirtualNetwork, pair: tuple[str, str], rtt_s: float, jitter_s: float
) -> list[float]:
    """Return the sorted milliseconds of pings. Raises ConfigError if they are out of bounds."""
    least, most, found = 1e3 * rtt_s, 1e3 * (rtt_s + 2 * jitter_s), [-1.0]
    for _ in range(TRIES):
        found = sorted(ping_ms(net, *pair)) or [-1.0]
        if least <= found[0] and found[len(found) // 2] <= most + SLACK_MS:
            return found
    raise ConfigError(
        f"pings {pair[0]} -> {pair[1]} should take {least:g} to {most:g} ms but took {found[0]:g} "
        f"to {found[-1]:g} ms; faults would be measured on the wrong network"
    )


def sent_bytes(net: VirtualNetwork, name: str) -> int:
    """Return the bytes that a member has sent over TCP, without TCP's own retransmissions.

    The kernel counts segments. Few are not full, so the result is slightly too high.
    """
    lines = [line.split() for line in net._inside(name, *_COUNTERS).splitlines()]
    names, counts = lines[:2]  # the counters of TCP come first
    return int(counts[names.index("TCPOrigDataSent")]) * _SEGMENT_BYTES


def wait_until_sent(net: VirtualNetwork, name: str, count: float, at_most_s: float = 90.0) -> None:
    """Wait until a member has sent this many bytes in all."""
    end_s = time.monotonic() + at_most_s
    while sent_bytes(net, name) < count and time.monotonic() < end_s:
        time.sleep(0.1)


class Partition:
    """Members on another bridge: they reach each other only."""

    def __init__(self, net: VirtualNetwork, names: Iterable[str]) -> None:
        self._net, self._names = net, list(names)

    def split(self) -> None:
        """Isolate the members."""
        self._net._switch_link("add", "br1", "type", "bridge")
        self._net._switch_link("set", "br1", "up")
        self._move("br1")

    def heal(self) -> None:
        """Connect the members again."""
        self._move("br0")
        self._net._switch_link("del", "br1")

    def _move(self, bridge: str) -> None:
        for name in self._names:
            self._net._switch_link("set", f"p{self._net._port[name]}", "master", bridge)


def leftovers(net: VirtualNetwork | None) -> list[str]:
    """Return namespaces and interfaces that were not removed."""
    if net is None:
        return []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    left = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(net._tag)]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=False)
    return left + [line.split(":")[1] for line in links.stdout.splitlines() if " e0@" in line]
