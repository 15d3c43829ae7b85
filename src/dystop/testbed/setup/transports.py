"""The transports of a testbed: how its parties are started, and how bytes travel between them.

`TestbedParams.transport` names one of `TRANSPORTS`. A launcher of a package may start threads with
`threads.run_parties`, or inherit from `Grpc` and connect its processes in another way.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dystop.errors import ConfigError
from dystop.registry import chosen
from dystop.testbed.params import TRANSPORTS

if TYPE_CHECKING:
    from dystop.config import Experiment
    from dystop.testbed.params import Limits
    from dystop.testbed.setup.launch import Network, ProgressReporter
    from dystop.testbed.transport.admission import Allowed
    from dystop.testbed.transport.interface import Transport


@dataclass(frozen=True)
class NewRun:
    """A run that somebody asks for."""

    experiment: "Experiment"
    file: Path | None  # where its settings come from
    keys: Sequence[str]  # settings that override the file
    out: Path
    name: str | None


class Launcher(ABC):
    """A transport. Fields hold its parameters, as `dystop.param` declares them."""

    name: ClassVar[str]
    summary: ClassVar[str]
    in_job: ClassVar[bool] = False
    """Parties are processes of a job on many machines, each started by the same command."""
    has_namespaces: ClassVar[bool] = False
    """Each party can have a network namespace."""

    def check(self, network: "Network") -> None:
        """Refuse what cannot be combined with the transport, or is not installed."""
        if network.namespaces and not self.has_namespaces:
            able = (name for name, kind in TRANSPORTS.built_in.items() if kind.has_namespaces)
            raise ConfigError(
                f"--netns is for --transport {' or '.join(able)}; parties over {self.name!r} have "
                "no network of their own"
            )

    @abstractmethod
    def begin(self, new: NewRun, watch: "ProgressReporter", network: "Network") -> Path | None:
        """Run all parties of a new run; return its folder, or None where nothing is shown."""

    @abstractmethod
    def resume(self, folder: Path, watch: "ProgressReporter", network: "Network") -> Path | None:
        """Resume an interrupted run; return its folder, or None where nothing is shown."""

    def prefix(self, folder: Path | None) -> str:
        """Return what stands before `dystop testbed --resume` in a shell, if there is a run."""
        return ""

    def connect(self, pki: Path, name: str, allowed: "Allowed", limits: "Limits") -> "Transport":
        """Return the transport of a party that runs as a process of its own.

        Args:
            pki: Folder with its key and certificate.
            name: Name of the party.
            allowed: Who may connect to it.
            limits: What one peer may take.
        """
        raise ConfigError(
            f"testbed.transport = {self.name!r}: only 'dystop testbed' starts its parties; use a "
            "transport of processes, such as 'grpc'"
        )


class OnThisMachine(Launcher):
    """A transport whose parties are started here, by one command."""

    def begin(self, new: NewRun, watch: "ProgressReporter", network: "Network") -> Path:
        """Create the folder of a new run, and run all parties."""
        from dystop.folders.run_folder import check_free
        from dystop.testbed.setup.launch import new_testbed

        if new.name is not None:
            check_free(new.out, new.name)
        folder = new_testbed(new.experiment, new.out, new.name, watch)
        self.run(folder, watch, network)
        return folder

    def resume(self, folder: Path, watch: "ProgressReporter", network: "Network") -> Path:
        """Run all parties, unless the run has finished."""
        from dystop.testbed.setup.launch import reopen_testbed

        if reopen_testbed(folder, watch):
            self.run(folder, watch, network)
        return folder

    @abstractmethod
    def run(self, folder: Path, watch: "ProgressReporter", network: "Network") -> None:
        """Run all parties to the end of the run."""


class Grpc(OnThisMachine):
    """Processes on one or many machines."""

    name = "grpc"
    summary = "processes with mutual TLS"
    has_namespaces = True

    def check(self, network: "Network") -> None:
        """Refuse if packages are missing, or namespaces cannot be created."""
        from dystop.testbed.launch.netns import check_possible
        from dystop.testbed.security import check_installed

        super().check(network)
        check_installed()
        if network.namespaces:
            check_possible()

    def run(self, folder: Path, watch: "ProgressReporter", network: "Network") -> None:
        """Run all parties as child processes."""
        from dystop.testbed.setup.launch import run_processes

        run_processes(folder, watch, network)

    def connect(self, pki: Path, name: str, allowed: "Allowed", limits: "Limits") -> "Transport":
        """Return a transport under the certificate of the party."""
        from dystop.testbed.security.identity import load_identity
        from dystop.testbed.transport.grpc import GrpcTransport

        return GrpcTransport(load_identity(pki, name), allowed, limits)


class Memory(OnThisMachine):
    """Threads of one process, for tests and debuggers."""

    name = "memory"
    summary = "threads of one process"

    def run(self, folder: Path, watch: "ProgressReporter", network: "Network") -> None:
        """Run all parties as threads."""
        from dystop.testbed.setup.threads import run_threads

        run_threads(folder, watch)


class Mpi(Launcher):
    """The ranks of a job: rank 0 is coordinator and observer, every other rank is one node."""

    name = "mpi"
    summary = "ranks of an MPI job, under mpiexec"
    in_job = True

    def begin(self, new: NewRun, watch: "ProgressReporter", network: "Network") -> Path | None:
        """Run this rank's part."""
        from dystop.testbed.setup.ranks import run_ranks

        return run_ranks(new.file, new.keys, new.out, new.name, watch)

    def resume(self, folder: Path, watch: "ProgressReporter", network: "Network") -> Path | None:
        """Run this rank's part, unless the run has finished."""
        from dystop.folders.run_folder import open_run
        from dystop.testbed.setup.launch import reopen_testbed
        from dystop.testbed.setup.ranks import resume_ranks

        if open_run(folder).info.get("status") == "finished":
            reopen_testbed(folder, watch)
            return folder
        return resume_ranks(folder, watch)

    def prefix(self, folder: Path | None) -> str:
        """Return what starts the ranks."""
        from dystop.config import read_again
        from dystop.testbed.setup.enrolment import node_names

        if folder is None:
            return ""
        names = node_names(read_again(folder))
        return f"mpiexec -n {len(names) + 1} "


def launcher_of(experiment: "Experiment") -> Launcher:
    """Return the transport that a configuration names, with its parameters."""
    launcher: Launcher = chosen(experiment.testbed, "transport")
    return launcher
