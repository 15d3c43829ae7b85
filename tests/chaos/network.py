"""Namespaces for fault tests: a check that the set rates hold, and networks that fall apart."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping

import pytest

from dystop.errors import ConfigError
from dystop.runtime.host.netns import Net, check_possible

LEAST, MOST = 0.92, 1.04  # of the set rate must arrive
TRIES = 4
_PORT = 7070

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
        with Net():
            return ""
    except (ConfigError, OSError) as error:
        return str(error).replace("--netns", "namespaces", 1).split(";")[0]


def needs_namespaces() -> None:
    """Skip the test, in one line, where namespaces cannot be had."""
    if reason := why_not():
        pytest.skip(reason)


def goodput_mbit(net: Net, source: str, sink: str, seconds: float = 3.0) -> float:
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


def check_rate(net: Net, rates: Mapping[str, float], pair: tuple[str, str]) -> float:
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


class Split:
    """Members on another bridge: they hear each other, and nobody else."""

    def __init__(self, net: Net, names: Iterable[str]) -> None:
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


def leftovers(net: Net | None) -> list[str]:
    """Namespaces and interfaces that should be gone."""
    if net is None:
        return []
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    left = [line.split()[0] for line in said.stdout.splitlines() if line.startswith(net._tag)]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=False)
    return left + [line.split(":")[1] for line in links.stdout.splitlines() if " e0@" in line]
