"""Actors of a virtual cluster: a machine, its disk, its clock, and how it can be hurt."""

from dataclasses import dataclass, field
from typing import Any


class Crash(Exception):
    """The process of an actor dies in the middle of what it does."""


@dataclass
class Actor:
    """One process after another under the same name."""

    name: str
    node: int  # -1: the coordinator
    machine: Any = None  # None: down
    life: int = 0  # which process this is
    offset_s: float = 0.0  # its clock against the agenda
    frozen: bool = False
    waiting: list[Any] = field(default_factory=list)  # events that come in while frozen
    disk: Any = None  # what survives: a worker's state, the coordinator's ledger
    full: bool = False  # the disk refuses to write
    doomed: int | None = None  # actions left until it dies
    lines: list[dict[str, Any]] = field(default_factory=list)  # its diary
    watch: Any = None
    exits: list[Any] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return self.machine is not None

    def spend(self) -> None:
        """One more action; the last one before its doom is never carried out."""
        if self.doomed is None:
            return
        if self.doomed <= 0:
            raise Crash(self.name)
        self.doomed -= 1
