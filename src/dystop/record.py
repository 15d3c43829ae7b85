"""The record of a round: one line of `records.jsonl`.

The simulator and the testbed write the same type. Reports, progress bars, dashboards and early
stopping read nothing else.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType
from typing import Any

from dystop.strict_json import parse_json


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
    compute_s: float  # of alive * duration_s: local training (control.time_spent)
    transfer_s: float  # of it: moving models
    wait_others_s: float  # of it: active workers that wait for a slower one
    accuracy: float | None = None  # mean over the workers' own models; of another task, its score
    accuracy_std: float | None = None
    accuracy_global: float | None = None
    test_loss: float | None = None
    test_loss_global: float | None = None
    diverged: int | None = None  # models whose test loss is not finite
    tested: int | None = None  # models behind the score; None: those of all workers
    no_score: str | None = None  # why the score that was due is missing
    worker_accuracy: Sequence[float | None] | None = None  # of each own model, evaluate.per_worker
    worker_loss: Sequence[float | None] | None = None  # test losses; None: not tested, not finite
    epsilon: float | None = None  # largest of all workers so far, privacy.noise_multiplier
    energy_j: float | None = None  # joules of this round, all present workers, energy.enabled
    compute_j: float | None = None  # of it: while training
    idle_j: float | None = None  # of it: while not training
    transmit_j: float | None = None  # of it: the radios while they send
    receive_j: float | None = None  # of it: the radios while they receive
    worker_energy_j: Sequence[float] | None = None  # of each worker, energy.per_worker
    worker_epsilon: Sequence[float] | None = None  # of each worker, evaluate.per_worker
    score_name: str | None = None  # what `accuracy` is where the task has another score, as in "r2"
    not_finite: Sequence[int] | None = None  # workers whose training loss is not finite
    trained_s: float | None = None  # testbed: trainings that ended, where devices are emulated
    emulated_s: float | None = None  # testbed: how long the emulated devices take for them
    notes: Mapping[str, float] = field(default_factory=dict)
    active_ids: Sequence[int] | None = None
    link_pairs: Sequence[Sequence[int]] | None = None  # [dst, src]
    positions: Sequence[Sequence[float]] | None = None  # metres, only where workers move

    def to_json(self) -> str:
        """Return the record as one line of JSON, without the fields that are None.

        The score of a task other than a classification goes by its own name, as in "r2_global".
        """
        kept = {k: v for k, v in vars(self).items() if v is not None}
        if self.score_name is not None:
            kept = {_renamed(k, ACCURACY, self.score_name): v for k, v in kept.items()}
        return json.dumps(kept, separators=(",", ":"), allow_nan=False)


ACCURACY = "accuracy"  # the score of a classification


def _renamed(name: str, old: str, new: str) -> str:
    """Return the name of a field of the score with another score's name.

    >>> _renamed("accuracy_std", "accuracy", "r2"), _renamed("clock_s", "accuracy", "r2")
    ('r2_std', 'clock_s')
    """
    of_score = (old, f"{old}_std", f"{old}_global", f"worker_{old}")
    return name.replace(old, new, 1) if name in of_score else name


SCORE = (
    "accuracy", "accuracy_std", "accuracy_global", "test_loss", "test_loss_global", "diverged",
    "tested", "worker_accuracy", "worker_loss", "score_name",
)  # fmt: skip
"""The fields that an evaluation fills."""

_REQUIRED = {
    f.name
    for f in fields(RoundRecord)
    if f.default is MISSING and f.default_factory is MISSING and f.name != "loss"
}
_NAMES = {f.name for f in fields(RoundRecord)}
_WHOLE = {f.name for f in fields(RoundRecord) if f.type in (int, int | None)}
_NUMBERS = _WHOLE | {f.name for f in fields(RoundRecord) if f.type in (float, float | None)}
_PER_WORKER = {"worker_accuracy", "worker_loss", "worker_energy_j", "worker_epsilon"}
_LARGEST = 2**63


def _fits(name: str, value: Any) -> bool:
    """Return whether the value of a field has its type, and a number is one that arrays hold.

    A finite float is of any size: the loss of models that diverge can be 1e30.
    """
    if value is None:
        return name not in _REQUIRED
    if name in _NUMBERS and type(value) is int:
        return -_LARGEST <= value < _LARGEST
    if name in _NUMBERS:
        return name not in _WHOLE and type(value) is float
    if name == "notes":
        return isinstance(value, dict) and all(type(v) in (int, float) for v in value.values())
    if name in _PER_WORKER:
        return isinstance(value, list) and all(type(v) in (int, float, NoneType) for v in value)
    return isinstance(value, str if name in ("no_score", "score_name") else list)


def from_json(line: str) -> RoundRecord:
    """Return the record of one line of JSON; raise ValueError if the line is not a record."""
    raw: Any = parse_json(line)
    if not isinstance(raw, dict):
        raise ValueError("not a round record")
    raw.setdefault("loss", None)
    if isinstance(score := raw.get("score_name"), str):
        raw = {_renamed(name, score, ACCURACY): value for name, value in raw.items()}
    if missing := _REQUIRED - set(raw):
        raise ValueError(f"not a round record: {', '.join(sorted(missing))} missing")
    if wrong := [name for name in raw if name in _NAMES and not _fits(name, raw[name])]:
        raise ValueError(f"not a round record: {wrong[0]} has a value of the wrong kind")
    return RoundRecord(**{k: v for k, v in raw.items() if k in _NAMES})


TOO_SLOW = 1.2
"""A machine is too slow for its devices if trainings take this many times as long as theirs."""


def training_slowdown(records: Iterable[RoundRecord]) -> float | None:
    """Return how many times as long the trainings of a testbed took as on its emulated devices."""
    known = [(r.trained_s, r.emulated_s) for r in records if r.trained_s and r.emulated_s]
    emulated_s = sum(emulated for _, emulated in known)
    return sum(trained for trained, _ in known) / emulated_s if emulated_s else None
