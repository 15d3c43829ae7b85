"""Namespaces for fault tests: checks that what was set holds; networks far away, or split."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dystop.errors import ConfigError
from dystop.testbed.launch.netns import VirtualNetwork, _call, check_possible

LEAST, MOST = 0.92, 1.04  # of the set rate must arrive
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
    """Why namespaces cannot be had here; empty if they can."""
    try:
        check_possible()
        with VirtualNetwork():
            return ""
    except (ConfigError, OSError) as error:
        return str(error).replace("--netns", "namespaces", 1).split(";")[0]


def needs_namespaces() -> None:
    """Skip the test, in one line, where namespaces cannot be had."""
    if reason := why_not():
        pytest.skip(reason)


def needs_taps() -> None:
    """Skip the test, in one line, where a `DelayedNetwork` cannot be had."""
    needs_namespaces()
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("TAP interfaces need /dev/net/tun")
    if shutil.which("ping") is None:
        pytest.skip("delays are measured with ping (package iputils-ping)")


def goodput_mbit(net: VirtualNetwork, source: str, sink: str, seconds: float = 3.0) -> float:
    """Megabits per second that a plain socket gets from one member to another."""
    place = [net.address(sink), str(_PORT)]
    taker = subprocess.Popen(
        [*net.prefix(sink), sys.executable, "-c", _SINK, *place],
        stdout=subprocess.PIPE,
    )
    assert taker.stdout is not None
    try:
        taker.stdout.readline()
        giver = [*net.prefix(source), sys.executable, "-c", _SOURCE, *place, f"{seconds:g}"]
        subprocess.run(giver, check=True, timeout=seconds + 20)
        got, took_s = json.loads(taker.stdout.readline())
        return float(8e-6 * got / took_s)
    finally:
        taker.kill()
        taker.wait()
        taker.stdout.close()


def check_rate(net: VirtualNetwork, rates: Mapping[str, float], pair: tuple[str, str]) -> float:
    """Refuse to go on where a link does not do what it was set to; answers the share."""
    wanted, share = min(rates[name] for name in pair), 0.0
    for _ in range(TRIES):  # a machine that is busy with other things gets another chance
        share = goodput_mbit(net, *pair) / wanted
        if LEAST <= share <= MOST:
            return share
    raise ConfigError(
        f"the link {pair[0]} -> {pair[1]} is set to {wanted:g} Mbit/s but brings "
        f"{100 * share:.0f} %; faults would be measured on the wrong network"
    )


class DelayedNetwork(VirtualNetwork):
    """Members on a switch of our own (see `switch`): far away, and lossy by a seed.

    Rates hold for a member's way out only.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._words = [sys.executable, str(Path(__file__).with_name("switch.py")), str(seed)]
        self.process: subprocess.Popen[str] | None = None

    def _order(self, *words: Any) -> Any:
        """Tell the switch something; it is started when it is first needed."""
        if self.process is None:
            self.process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self.process.stdin
        assert self.process.stdout
        said = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            said = self.process.stdout.readline()
        if not said:
            raise ConfigError(f"the switch has ended at {words}; it said why on standard error")
        return json.loads(said)

    def add(self, name: str, rate_mbit: float = 0.0) -> str:
        """Add a member whose way out has this rate (0: as fast as it goes)."""
        self._port[name] = len(self._port) + 1
        space, subnet = self.namespace(name), self.address(name).rpartition(".")[0] + ".0/24"
        self._new(space)
        self._order("plug", name, space)
        for device in ("lo", "e0"):
            _call("ip", "-n", space, "link", "set", device, "up")
        _call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "e0")
        with suppress(ConfigError):  # a kernel without cubic keeps its own choice
            _call("ip", "-n", space, "route", "replace", subnet, "dev", "e0", "congctl", "cubic")
        if rate_mbit:
            self.shape(name, rate_mbit)
        return self.address(name)

    def shape(self, name: str, rate_mbit: float) -> None:
        """Set the rate of a member's way out."""
        how = ["rate", f"{max(1, round(1000 * rate_mbit))}kbit", "burst", "32kb"]
        words = ["tc", "qdisc", "replace", "dev", "e0", "root", "tbf", *how, "latency", "100ms"]
        self._inside(name, *words)

    def far(self, rtt_s: float, jitter_s: float = 0.0) -> None:
        """From now on a ping takes `rtt_s`, and up to `2 * jitter_s` more."""
        self._order("set", {"rtt_s": rtt_s, "jitter_s": jitter_s})

    def loss(self, percent: float) -> None:
        """Lose this share of the frames of every way."""
        self._order("set", {"loss": percent / 100})

    def cut(self, name: str) -> None:
        """Take a member off the network; nothing tells the others."""
        self._order("cut", name)

    def heal(self, name: str) -> None:
        """Put it back."""
        self._order("mend", name)

    def count(self) -> dict[str, float]:
        """Frames taken, lost and cut off, and the most that one came too late."""
        return dict(self._order("count"))

    def close(self) -> None:
        """End the switch, whose interfaces go with it, then remove everything else."""
        process, self.process = self.process, None
        if process:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)  # the end of its orders ends it
            process.kill()
            process.wait()
        super().close()


def ping_ms(net: VirtualNetwork, source: str, sink: str, count: int = 20) -> list[float]:
    """Milliseconds that pings took, after one for which the address had to be found."""
    said = ""
    for number in (1, count):
        words = ["ping", "-n", "-i", "0.05", "-W", "1", "-c", str(number), net.address(sink)]
        done = subprocess.run(
            [*net.prefix(source), *words], capture_output=True, text=True, check=False, timeout=60
        )
        said = done.stdout
    return [float(ms) for ms in re.findall(r"time=([\d.]+) ms", said)]


def check_rtt(
    net: VirtualNetwork, pair: tuple[str, str], rtt_s: float, jitter_s: float
) -> list[float]:
    """Refuse to go on where pings do not take what was set; answers milliseconds, sorted."""
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
    """Bytes that a member has sent over TCP, not counting what TCP itself sent again.

    The kernel counts segments; few are not full, so this is a little too much.
    """
    lines = [line.split() for line in net._inside(name, *_COUNTERS).splitlines()]
    names, counts = lines[:2]  # those of TCP come first
    return int(counts[names.index("TCPOrigDataSent")]) * _SEGMENT_BYTES


class Split:
    """Members on another bridge: they hear each other, and nobody else."""

    def __init__(self, net: VirtualNetwork, names: Iterable[str]) -> None:
        self._net, self._names = net, list(names)

    def apart(self) -> None:
        """Split them off."""
        self._net._switch_link("add", "br1", "type", "bridge")
        self._net._switch_link("set", "br1", "up")
        self._move("br1")

    def together(self) -> None:
        """Put them back."""
        self._move("br0")
        self._net._switch_link("del", "br1")

    def _move(self, bridge: str) -> None:
        for name in self._names:
            self._net._switch_link("set", f"p{self._net._port[name]}", "master", bridge)


def leftovers(net: VirtualNetwork | None) -> list[str]:
    """Namespaces and interfaces that should be gone."""
    if net is None:
        return []
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    left = [line.split()[0] for line in said.stdout.splitlines() if line.startswith(net._tag)]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=False)
    return left + [line.split(":")[1] for line in links.stdout.splitlines() if " e0@" in line]
