"""The services of `deploy/compose.yaml` as plain processes on loopback, without containers.

A service keeps its commands, environment, volumes, dependencies and health check. What a container
engine would provide is replaced: a folder with links takes the place of the mounts, free ports of
127.0.0.1 the place of the network, and `deploy/party.sh` of this repository the place of the image.
"""

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
STATE = Path("/var/lib/dystop")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
_ADDRESS = re.compile(r"^(?:coordinator|0\.0\.0\.0):(\d+)$")


def read_compose() -> dict[str, Any]:
    """Return the file with the defaults of its variables."""
    text = (DEPLOY / "compose.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda match: match[2], text))
    return found


def image_health_command() -> list[str]:
    """Return the words of the image's HEALTHCHECK."""
    text = (DEPLOY / "Dockerfile").read_text()
    words = re.search(r"HEALTHCHECK[^[]*CMD (\[.*\])", text)
    assert words is not None
    found: list[str] = yaml.safe_load(words[1])
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Fleet:
    """All processes of the compose file."""

    home: Path
    experiment: Path
    services: dict[str, Any] = field(default_factory=lambda: read_compose()["services"])
    ports: dict[str, int] = field(default_factory=dict)  # by the port in the file
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def names(self, service: str) -> list[str]:
        """Return a name for each container of a service."""
        return [f"{service}-1"]

    def workers(self) -> list[str]:
        """Return the names of the workers' services."""
        return [name for name, it in self.services.items() if it["command"] == ["worker"]]

    def folder(self, name: str) -> Path:
        return self.home / name

    def log(self, name: str) -> str:
        return (self.folder(name) / "log").read_text(errors="replace")

    def environment(self, name: str, service: str) -> dict[str, str]:
        """Return the environment of a container, with paths and addresses of this host."""
        given = {k: self._here(v) for k, v in self.services[service].get("environment", {}).items()}
        folder = self.folder(name)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        local = {"STATE": str(folder / "state"), "EXPERIMENT": str(self.experiment)}
        local |= {"HEALTH": str(folder / "health.json"), "PATH": path, "OMP_NUM_THREADS": "1"}
        return {**os.environ, "LISTEN": "127.0.0.1:0", **given, **local}

    def start(self, service: str) -> None:
        """Start every container of a service."""
        for name in self.names(service):
            state = self.folder(name) / "state"
            state.mkdir(parents=True)
            for source, target in self.mounts(service):
                source.mkdir(parents=True, exist_ok=True)
                place = state / target.relative_to(STATE)
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(source)
            self.restart(name, service)

    def mounts(self, service: str) -> list[tuple[Path, Path]]:
        """Return the folder of each mount, which may be a part of a volume, and its target."""
        found = []
        for mount in self.services[service].get("volumes", []):
            if isinstance(mount, str):
                source, target = mount.split(":")[:2]
            else:
                source = f"{mount['source']}/{mount['volume']['subpath']}"
                target = mount["target"]
            found.append((self.home / "volumes" / source, Path(target)))
        return found

    def restart(self, name: str, service: str) -> None:
        """Start one container, with what it had before."""
        words = [self._here(word) for word in self.services[service]["command"]]
        with (self.folder(name) / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(DEPLOY / "party.sh"), *words],
                env=self.environment(name, service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, service: str) -> None:
        """Start a service that ends by itself, and wait for it."""
        self.start(service)
        for name in self.names(service):
            assert self.processes[name].wait(120) == 0, self.log(name)

    def health(self, name: str) -> subprocess.CompletedProcess[str]:
        """Return the answer of the image's health check in a container."""
        program, *words = image_health_command()
        file = str(self.folder(name) / "health.json")
        words = [file if word.startswith("/") else word for word in words]
        assert program == "dystop"
        command = [sys.executable, "-m", "dystop", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def wait_healthy(self, name: str, within_s: float = 120.0) -> None:
        """Wait as `depends_on: condition: service_healthy` does."""
        until = time.monotonic() + within_s
        while self.health(name).returncode:
            assert time.monotonic() < until, self.log(name)
            assert self.processes[name].poll() is None, self.log(name)
            time.sleep(1.0)

    def up(self) -> None:
        """Start all services without a profile, in the order of their dependencies."""
        waiting = {k: s for k, s in self.services.items() if "profiles" not in s}
        while waiting:
            ready = [
                k for k, s in waiting.items() if not (s.get("depends_on", {}).keys() & waiting)
            ]
            assert ready, f"a circle of dependencies: {sorted(waiting)}"
            for service in ready:
                self._start_after_dependencies(service)
                del waiting[service]

    def _start_after_dependencies(self, service: str) -> None:
        for other, how in self.services[service].get("depends_on", {}).items():
            for name in self.names(other):
                if how["condition"] == "service_completed_successfully":
                    assert self.processes[name].wait(120) == 0, self.log(name)
                else:
                    assert how["condition"] == "service_healthy"
                    self.wait_healthy(name)
        self.start(service)

    def down(self) -> None:
        """Stop all processes that still run."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _here(self, value: str) -> str:
        """Return a value of the file with a port of this host in place of a container's."""
        match = _ADDRESS.match(value)
        if match is None:
            return value
        return f"127.0.0.1:{self.ports.setdefault(match[1], free_port())}"
