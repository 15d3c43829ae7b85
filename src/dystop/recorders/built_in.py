"""The recorders that come with dystop, and records that hold their fields."""

from dataclasses import fields
from typing import Any

from dystop.errors import ConfigError
from dystop.record import Evaluated, RoundRecord, from_json
from dystop.recorders.emulated_trainings import EmulatedTrainingsRecorder
from dystop.recorders.energy import EnergyRecorder
from dystop.recorders.failed_trainings import FailedTrainingsRecorder
from dystop.recorders.positions import PositionsRecorder
from dystop.recorders.privacy import PrivacyRecorder
from dystop.recorders.recorder import Recorder, Recorders, Setting
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.recorders.topology import TopologyRecorder

RECORDERS: tuple[type[Recorder], ...] = (
    TimeSpentRecorder, EmulatedTrainingsRecorder, TopologyRecorder, PositionsRecorder,
    FailedTrainingsRecorder, EnergyRecorder, PrivacyRecorder,
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
    return {
        f.name: kinds[f.type]
        for f in (*fields(RoundRecord), *fields(Evaluated), *added)
        if f.type in kinds
    }


def check_score_name(name: str) -> None:
    """Raise ConfigError where the score of a task has the name of a recorder's field."""
    if any(name == f.name for group in GROUPS for f in fields(group)):
        raise ConfigError(f"score_name = {name!r} is a field of a record; choose another name")


def read_record(line: str) -> RoundRecord:
    """Return the record of one line of JSON; raise ValueError if the line is not a record."""
    return from_json(line, GROUPS)
