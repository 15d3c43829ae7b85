"""A virtual network for a testbed: namespaces on a bridge, with rates, loss and cuts (Linux, root).

Every member gets a network namespace with one interface and an address. All interfaces meet on a
bridge in a namespace of its own, so the host's network is not touched. The names contain the number
of the launcher's process: the next launcher removes what a killed one left behind.
"""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from typing import Self

from dystop.errors import ConfigError

TOOLS = ("ip", "tc", "ethtool", "nft")
MAX_MEMBERS = 250  # one address each in the last byte
_NETWORK = "10.77.0"
_MARK = "dystop"
_TABLE = "faults"


def check_possible() -> None:
    """Raise ConfigError where namespaces cannot be created."""
    if os.name != "posix" or not hasattr(os, "geteuid") or not os.path.isdir("/proc/self/ns"):
        raise ConfigError("--netns needs Linux; leave it out to run over loopback")
    if os.geteuid() != 0:
        raise ConfigError(
            "--netns needs root, or a user namespace in which you are root "
            "(scripts/own_network.sh of the repository); leave it out to run over loopback"
        )
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ConfigError(
            f"--netns needs {', '.join(missing)} (Debian: apt-get install iproute2 ethtool "
            "nftables); install them, or leave it out to run over loopback"
        )


def _call(*words: str) -> str:
    """Run a tool; if it fails, raise ConfigError with its message."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        reason = " ".join(done.stderr.split())[:200]
        raise ConfigError(f"--netns: '{' '.join(words)}' failed: {reason or done.returncode}")
    return done.stdout


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line.strip()]


def remove_stale() -> int:
    """Remove namespaces whose launcher has ended; return how many."""
    removed = 0
    for name in _namespaces():
        made = re.fullmatch(rf"{_MARK}-(\d+)-.+", name)
        if made and not os.path.isdir(f"/proc/{made[1]}"):
            with suppress(ConfigError):
                _call("ip", "netns", "del", name)
                removed += 1
    return removed


class VirtualNetwork:
    """Network namespaces on a bridge, for as long as the `with` block lasts."""

    def __init__(self) -> None:
        self._tag = f"{_MARK}-{os.getpid()}"
        self._port: dict[str, int] = {}
        self._made: list[str] = []

    def __enter__(self) -> Self:
        check_possible()
        remove_stale()
        try:
            self._new(self._switch)
            self._switch_link("add", "br0", "type", "bridge")
            self._switch_link("set", "br0", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _switch(self) -> str:
        return f"{self._tag}-switch"

    def _new(self, namespace: str) -> None:
        _call("ip", "netns", "add", namespace)
        self._made.append(namespace)

    def _switch_link(self, *words: str) -> None:
        _call("ip", "-n", self._switch, "link", *words)

    def _inside(self, name: str, *words: str) -> str:
        return _call(*self.prefix(name), *words)

    def namespace(self, name: str) -> str:
        """Return the name of a member's namespace."""
        return f"{self._tag}-{name}"

    def prefix(self, name: str) -> list[str]:
        """Return the words that run a command inside; the process keeps its number."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def address(self, name: str) -> str:
        """Return the address of a member, without a port."""
        return f"{_NETWORK}.{self._port[name]}"

    def add(self, name: str, rate_mbit: float = 0.0) -> str:
        """Add a member whose link has this rate in both directions (0: no limit)."""
        number = len(self._port) + 1
        if number > MAX_MEMBERS or name in self._port:
            raise ConfigError(
                f"--netns: {name!r} exists already, or there are more than {MAX_MEMBERS} members"
            )
        space, port = self.namespace(name), f"p{number}"
        self._new(space)
        self._port[name] = number
        _call("ip", "-n", space, "link", "set", "lo", "up")
        _call("ip", "link", "add", "e0", "netns", space, "type", "veth", "peer", "name", port,
              "netns", self._switch)  # fmt: skip
        self._switch_link("set", port, "master", "br0", "up")
        _call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "e0")
        _call("ip", "-n", space, "link", "set", "e0", "up")
        with suppress(ConfigError):  # a kernel without cubic keeps its default
            _call("ip", "-n", space, "route", "replace", f"{_NETWORK}.0/24", "dev", "e0",
                  "congctl", "cubic")  # fmt: skip
        self._inside(name, "ethtool", "-K", "e0", "tso", "off", "gso", "off", "gro", "off")
        if rate_mbit:
            self.shape(name, rate_mbit)
        return self.address(name)

    def shape(self, name: str, rate_mbit: float) -> None:
        """Set the rate of a member's link in both directions."""
        kilobit = max(1, round(1000 * rate_mbit))
        how = ["root", "tbf", "rate", f"{kilobit}kbit", "burst", "32kb", "latency", "100ms"]
        self._inside(name, "tc", "qdisc", "replace", "dev", "e0", *how)
        port = f"p{self._port[name]}"
        _call("ip", "netns", "exec", self._switch, "tc", "qdisc", "replace", "dev", port, *how)

    def cut(self, name: str) -> None:
        """Disconnect a member; the others are not notified."""
        self._switch_link("set", f"p{self._port[name]}", "down")

    def heal(self, name: str) -> None:
        """Reconnect a member."""
        self._switch_link("set", f"p{self._port[name]}", "up")

    def loss(self, percent: float) -> None:
        """Drop this share of the packets that reach each member; 0 ends it."""
        share = round(10 * percent)
        some = f"numgen random mod 1000 < {share} " if share < 1000 else ""
        for name in self._port:
            self._rules(name, f"iif e0 {some}counter drop" if share else "")

    def block(self, name: str, to: str) -> None:
        """Drop what a member receives from `to`; the other direction still works."""
        self._rules(name, f"ip saddr {self.address(to)} drop")

    def unblock(self, name: str) -> None:
        """End loss and blocking at one member."""
        self._rules(name, "")

    def _rules(self, name: str, rule: str) -> None:
        chain = "{ type filter hook prerouting priority -300; }"
        script = f"add table ip {_TABLE}; delete table ip {_TABLE}; add table ip {_TABLE}; "
        script += f"add chain ip {_TABLE} in {chain}; "
        self._inside(name, "nft", script + (f"add rule ip {_TABLE} in {rule}" if rule else ""))

    def close(self) -> None:
        """Remove everything that still exists."""
        while self._made:
            with suppress(ConfigError, subprocess.TimeoutExpired):
                _call("ip", "netns", "del", self._made.pop())
        self._port.clear()
