"""Recorders: parts that add a group of fields to the record of every round.

Simulator and testbed call a recorder at the same three places: before the first round, where
trainings begin, and where the record of a round is made. What it remembers from one place to the
next is a value, which checkpoints and ledgers keep.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from dystop.control.time_spent import SpentParts
from dystop.errors import ConfigError
from dystop.plan import Plan
from dystop.record import Added, Evaluated, RoundRecord
from dystop.sparse import Floats, Ints
from dystop.types import Fleet, Outcome, View


@dataclass(frozen=True)
class FinishedRound:
    """What a recorder may know of a round."""

    view: View  # when it opened
    plan: Plan
    outcome: Outcome
    steps: Ints  # mini-batches of the trainings that the plan orders, [A]
    spent: SpentParts  # what the workers did with their time (`control.time_spent`)
    position: Floats  # of the nodes when it opened, in metres, [nodes, 2]
    tested: bool  # whether an evaluation is due after it


@dataclass(frozen=True)
class Setting:
    """What a recorder is made from."""

    config: Any  # the sections of the configuration, as attributes
    fleet: Fleet
    testbed: bool  # whether the run has real processes


@dataclass(frozen=True)
class Recorder:
    """Adds a group of fields to records. A subclass is one file.

    What it remembers is None, a number, an array, or a list or dict of them.
    """

    group: ClassVar[type[Added]]
    """The fields that it adds. No other recorder of the run may have one of the same name."""

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder that a configuration asks for; None: it asks for none."""
        return cls()

    def first(self, workers: int) -> Any:
        """Return what it remembers before the first round."""
        return None

    def count(self, memory: Any, workers: Ints, steps: Ints) -> Any:
        """Return what it remembers after some workers have begun trainings of so many steps."""
        return memory

    def record(self, memory: Any, done: FinishedRound) -> tuple[Added | None, Any]:
        """Return the fields of a round, or None, and what it remembers after the round."""
        raise NotImplementedError


Recorders = tuple[Recorder, ...]
Memories = tuple[Any, ...]
"""What each of the recorders of a run remembers."""


def first_memories(recorders: Recorders, workers: int) -> Memories:
    """Return what recorders remember before the first round.

    Raises:
        ConfigError: Two of them add a field of the same name, or one that every record has.
    """
    taken = {f.name for f in (*fields(RoundRecord), *fields(Evaluated))}
    for each in recorders:
        added = {f.name for f in fields(each.group)}
        if twice := sorted(added & taken):
            raise ConfigError(
                f"recorders: {type(each).__name__} adds the field {twice[0]!r}, which a record has"
            )
        taken |= added
    return tuple(each.first(workers) for each in recorders)


def count_trainings(
    recorders: Recorders, memories: Memories, workers: Ints, steps: Ints
) -> Memories:
    """Return what recorders remember after some workers have begun trainings of so many steps."""
    pairs = zip(recorders, memories, strict=True)
    return tuple(each.count(memory, workers, steps) for each, memory in pairs)


def measured(
    recorders: Recorders, memories: Memories, done: FinishedRound
) -> tuple[dict[str, Any], Memories]:
    """Return what all recorders add to the record of a round, and what they remember after it."""
    added, after = dict[str, Any](), list[Any]()
    for each, memory in zip(recorders, memories, strict=True):
        group, remembered = each.record(memory, done)
        if group is not None:
            added |= group.leaves()
        after.append(remembered)
    return added, tuple(after)
