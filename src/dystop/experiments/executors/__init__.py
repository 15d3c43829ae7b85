"""Executors: where the runs of a study run, chosen by `--on`.

executor        the interface of an engine: submit a job, watch it, cancel it
driver          the study: hands runs to an engine, follows them, publishes their results
driver_lock     one driver at a time, on whichever host
attempts        a folder for each attempt at a run, published by renaming
node            what an engine runs on a node
shared_folder   proof that a node sees the folder of the study
processes       `dystop` commands as child processes
local           child processes, one GPU each
slurm           Slurm, through submitit
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dystop.errors import ConfigError, nearest
from dystop.experiments.executors.executor import Executor


@dataclass(frozen=True)
class Choice:
    """An engine as the command line chooses it."""

    on: str = "local"  # NAME, or NAME:ADDRESS
    jobs: int | None = None  # runs at the same time; None: the engine chooses
    settings: Mapping[str, Any] = field(default_factory=dict)  # the table of this engine

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.on.partition(":")[0]

    @property
    def address(self) -> str:
        """What follows the colon in `--on`; empty without one."""
        return self.on.partition(":")[2]


def _local(choice: Choice) -> Executor:
    from dystop.experiments.executors.local import LocalExecutor, gpus_here

    return LocalExecutor(choice.jobs, [] if choice.jobs == 1 else gpus_here())


EXECUTORS: dict[str, Callable[[Choice], Executor]] = {"local": _local}
"""Makes the executor of a choice, by the name of the engine."""


def make_executor(choice: Choice) -> Executor:
    """Return the executor that `--on` names.

    Raises:
        ConfigError: There is no such executor.
        DystopError: It cannot be used here; says what is missing.
    """
    if choice.name not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        close = nearest(choice.name, EXECUTORS)
        raise ConfigError(f"command line: --on {choice.on}; expected one of {known}{close}")
    return EXECUTORS[choice.name](choice)
