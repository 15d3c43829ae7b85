"""The processes of a virtual cluster: each has a machine, a disk, a clock and its faults."""

from dataclasses import dataclass, field
from typing import Any


class Crash(Exception):
    """A process crashes while it executes its actions."""


@dataclass
class Process:
    """One member of the cluster; after a restart the object holds the next process."""

    name: str
    node: int  # -1: the coordinator
    machine: Any = None  # None: down
    life: int = 0  # which process this is
    offset_s: float = 0.0  # of its clock from the schedule
    frozen: bool = False
    waiting: list[Any] = field(default_factory=list)  # events that come in while frozen
    disk: Any = None  # what survives: a worker's state, the coordinator's ledger
    full: bool = False  # the disk refuses to write
    crash_in: int | None = None  # actions left until it crashes
    log_lines: list[dict[str, Any]] = field(default_factory=list)  # its event log
    logger: Any = None
    exits: list[Any] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return self.machine is not None

    def count_action(self) -> None:
        """Count an action; raise `Crash` instead of the one at which the process dies."""
        if self.crash_in is None:
            return
        if self.crash_in <= 0:
            raise Crash(self.name)
        self.crash_in -= 1
