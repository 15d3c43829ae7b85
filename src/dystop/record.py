"""The record of a round: one line of `records.jsonl`.

The simulator and the testbed write the same type. Reports, progress bars, dashboards and early
stopping read nothing else. What not every run measures is added by recorders, in groups of fields
(`dystop.recorders`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from dystop.strict_json import parse_json


@dataclass(frozen=True)
class Added:
    """Fields that a recorder adds to a record; a subclass names them."""

    def leaves(self) -> dict[str, Any]:
        """Return the fields that have a value, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


Kind = TypeVar("Kind", bound=Added)


@dataclass(frozen=True)
class RoundRecord:
    """One round. It holds no wall-clock time, so that a simulation reproduces it exactly."""

    round: int
    clock_s: float  # seconds from the start of the run to the end of the round
    duration_s: float  # H_t
    alive: int
    active: int
    links: int  # transfers that arrived
    lost: int  # transfers that failed
    wire_bytes: int  # of this round; counts each transfer once
    wire_bytes_total: int
    endpoint_bytes_total: int  # counts each transfer at both ends: the paper's sum of B_t^i
    samples_total: int  # images trained on since the start
    epochs_total: float  # passes over the whole training set since the start
    idle_s: float
    staleness_mean: float
    staleness_max: int
    staleness_histogram: Sequence[int]  # workers with staleness 0, 1, 2, ... when the round opened
    queue_mean: float
    loss: float | None  # mean training loss of the workers that trained
    no_score: str | None = None  # why the score that was due is missing
    notes: Mapping[str, float] = field(default_factory=dict)
    added: Mapping[str, Any] = field(default_factory=dict)  # of evaluations and recorders, by name

    @property
    def accuracy(self) -> float | None:
        """The mean over the workers' own models; of another task, its score. None: not tested."""
        found: float | None = self.added.get("accuracy")
        return found

    def get(self, name: str) -> Any:
        """Return a field by the name that it has in JSON; None: the record has none."""
        return self.added[name] if name in self.added else getattr(self, name, None)

    def group(self, kind: type[Kind]) -> Kind | None:
        """Return what a recorder has added; None: nothing."""
        found = {f.name: self.added.get(f.name) for f in fields(kind)}
        return None if all(value is None for value in found.values()) else kind(**found)

    def having(self, group: Added) -> "RoundRecord":
        """Return the record with the fields of a group."""
        return replace(self, added={**self.added, **group.leaves()})

    def to_json(self) -> str:
        """Return the record as one line of JSON, without the fields that are None.

        The score of a task other than a classification goes by its own name, as in "r2_global".
        """
        kept = {k: v for k, v in vars(self).items() if v is not None and k != "added"}
        kept |= self.added
        if (name := self.added.get("score_name")) is not None:
            kept = {_renamed(k, ACCURACY, name): v for k, v in kept.items()}
        return json.dumps(kept, separators=(",", ":"), allow_nan=False)


ACCURACY = "accuracy"  # the score of a classification


def _renamed(name: str, old: str, new: str) -> str:
    """Return the name of a field of the score with another score's name.

    >>> _renamed("accuracy_std", "accuracy", "r2"), _renamed("clock_s", "accuracy", "r2")
    ('r2_std', 'clock_s')
    """
    of_score = (old, f"{old}_std", f"{old}_global", f"worker_{old}")
    return name.replace(old, new, 1) if name in of_score else name


@dataclass(frozen=True)
class Evaluated(Added):
    """What an evaluation adds."""

    accuracy: float  # mean over the workers' own models; of another task, its score
    accuracy_std: float
    accuracy_global: float  # of the average of all models
    test_loss: float | None = None
    test_loss_global: float | None = None
    diverged: int | None = None  # models whose test loss is not finite
    tested: int | None = None  # models behind the score; None: those of all workers
    worker_accuracy: Sequence[float | None] | None = None  # of each own model, evaluate.per_worker
    worker_loss: Sequence[float | None] | None = None  # test losses; None: not tested, not finite
    score_name: str | None = None  # what `accuracy` is where the task has another score, as in "r2"


SCORE = tuple(f.name for f in fields(Evaluated))
"""The fields that an evaluation adds."""

_REQUIRED = {
    f.name
    for f in fields(RoundRecord)
    if f.default is MISSING and f.default_factory is MISSING and f.name != "loss"
}
_NAMES = {f.name for f in fields(RoundRecord)} - {"added"}
_LARGEST = 2**63


@lru_cache
def _types(groups: tuple[type[Added], ...]) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field of a record and of groups may have."""
    known = [f for kind in groups for f in fields(kind)]
    added = {f.name: (*_options(f.type), NoneType) for f in (*fields(Evaluated), *known)}
    return added | {f.name: _options(f.type) for f in fields(RoundRecord) if f.name in _NAMES}


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of a kind, and a number is one that arrays hold.

    A finite float is of any size: the loss of models that diverge can be 1e30.
    """
    if kind in (int, float) and type(value) is int:
        return -_LARGEST <= value < _LARGEST
    if kind in (int, float, str, NoneType):
        return type(value) is kind
    if get_origin(kind) is Mapping:
        return isinstance(value, dict) and all(type(v) in (int, float) for v in value.values())
    if not isinstance(value, list):
        return False
    (inside,) = get_args(kind)
    return float not in _options(inside) or {*map(type, value)} <= {int, float, NoneType}


def from_json(line: str, groups: tuple[type[Added], ...] = ()) -> RoundRecord:
    """Return the record of one line of JSON.

    Args:
        line: The line.
        groups: Fields of recorders whose types are known; those of others are taken as they are.

    Raises:
        ValueError: The line is not a record.
    """
    raw: Any = parse_json(line)
    if not isinstance(raw, dict):
        raise ValueError("not a round record")
    raw.setdefault("loss", None)
    if isinstance(score := raw.get("score_name"), str):
        raw = {_renamed(name, score, ACCURACY): value for name, value in raw.items()}
    if missing := _REQUIRED - set(raw):
        raise ValueError(f"not a round record: {', '.join(sorted(missing))} missing")
    for name, kinds in _types(groups).items():
        if name in raw and not any(_fits(kind, raw[name]) for kind in kinds):
            raise ValueError(f"not a round record: {name} has a value of the wrong kind")
    known = {name: raw.pop(name) for name in _NAMES & raw.keys()}
    return RoundRecord(**known, added={k: v for k, v in raw.items() if v is not None})
