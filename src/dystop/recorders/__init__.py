"""Recorders: what is measured beside what every record has, one file each.

recorder          what a recorder is, and the three places where it is called
topology          who was active, and which links were used
positions         where the workers are, if they move
failed_trainings  the workers whose training loss is not finite
"""

from dataclasses import fields
from typing import Any

from dystop.record import RoundRecord, from_json
from dystop.recorders.failed_trainings import FailedTrainingsRecorder
from dystop.recorders.positions import PositionsRecorder
from dystop.recorders.recorder import Recorder, Recorders, Setting
from dystop.recorders.topology import TopologyRecorder

RECORDERS: tuple[type[Recorder], ...] = (
    TopologyRecorder, PositionsRecorder, FailedTrainingsRecorder,
)  # fmt: skip
"""The recorders that come with dystop, in the order in which they are called."""

GROUPS = tuple(kind.group for kind in RECORDERS)


def recorders_of(setting: Setting) -> Recorders:
    """Return the recorders that a configuration asks for."""
    made = (kind.of(setting) for kind in RECORDERS)
    return tuple(each for each in made if each is not None)


def number_fields() -> dict[str, type[int] | type[float]]:
    """Return the fields of records that hold one number, with their types."""
    kinds: dict[Any, type[int] | type[float]] = {
        int: int, float: float, int | None: int, float | None: float,
    }  # fmt: skip
    added = [f for group in GROUPS for f in fields(group)]
    return {f.name: kinds[f.type] for f in (*fields(RoundRecord), *added) if f.type in kinds}


def read_record(line: str) -> RoundRecord:
    """Return the record of one line of JSON; raise ValueError if the line is not a record."""
    return from_json(line, GROUPS)
