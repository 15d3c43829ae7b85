"""Two peers, in namespaces or on loopback, and the transfer of a model between them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dystop.testbed.launch.netns import VirtualNetwork
from dystop.testbed.security import authority

from .network import check_rate
from .rig import HERE


class Pair:
    """A peer `a` that serves a model and a peer `b` that pulls it."""

    def __init__(self, folder: Path, megabytes: float, net: VirtualNetwork | None = None) -> None:
        self.pki, self.megabytes, self.net = folder / "pki", megabytes, net
        self.address = ""
        if not self.pki.exists():
            authority.init(self.pki)
            for name in "ab":
                authority.issue(self.pki, name)

    def _command(self, name: str, *words: str) -> list[str]:
        inside = self.net.prefix(name) if self.net else []
        return [*inside, sys.executable, str(HERE / "peer.py"), *words]

    @contextmanager
    def serving(self, behaviour: str = "", prefix: Sequence[str] = ()) -> Iterator[None]:
        """Run `a` as the server for the length of the `with` block."""
        host = self.net.address("a") if self.net else "127.0.0.1"
        words = ["serve", str(self.pki), "a", f"{host}:0", str(self.megabytes)]
        words += [behaviour] if behaviour else []
        child = subprocess.Popen(
            [*prefix, *self._command("a", *words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout
        assert child.stdin
        try:
            self.address = child.stdout.readline().decode().strip()
            assert self.address
            yield
        finally:
            child.stdin.close()
            child.kill()
            child.wait()
            child.stdout.close()

    def fetch(self, seconds: float = 60.0, away_s: float = 4.0) -> Any:
        """Start the pull of `b`; return a function that waits for its result."""
        words = ["fetch", str(self.pki), "b", "a", self.address]
        words += [str(self.megabytes), f"{seconds:g}", f"{away_s:g}"]
        child = subprocess.Popen(self._command("b", *words), stdout=subprocess.PIPE)

        def result() -> dict[str, Any]:
            try:
                output = child.communicate(timeout=seconds + 60)[0]
            finally:
                child.kill()
                child.wait()
            return dict(json.loads(output))

        return result


@contextmanager
def two_peers(folder: Path, megabytes: float, rate_mbit: float) -> Iterator[Pair]:
    """Yield two peers in namespaces; the rate of their links is measured first."""
    with VirtualNetwork() as net:
        for name in "ab":
            net.add(name, rate_mbit)
        check_rate(net, {"a": rate_mbit, "b": rate_mbit}, ("a", "b"))
        pair = Pair(folder, megabytes, net)
        with pair.serving():
            yield pair
