"""The numbers of a run: one value of each, for tables and for results.csv."""

from collections.abc import Sequence
from dataclasses import dataclass

from dystop.control.fairness import fairness_of
from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.names import (
    clock_name,
    is_planned,
    mechanism_of,
    run_labels,
    run_status,
)
from dystop.report.data.scores import (
    best_accuracy,
    evaluated_rounds,
    first_reaching,
    until_target,
)
from dystop.report.data.time_shares import time_shares
from dystop.units import known

TARGETS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Default target accuracies."""

NO_TARGET_PLANNED = "Planning only: no model was trained, so there is no target accuracy."


@dataclass(frozen=True)
class RunSummary:
    """The numbers of one run; None where there is no value. Fields are columns of results.csv."""

    label: str
    mechanism: str  # with its provenance
    status: str
    rounds: int
    clock_s: float
    wire_bytes: int
    endpoint_bytes: int
    epochs: float
    accuracy: float | None = None  # of the last evaluation, mean over the workers' models
    accuracy_std: float | None = None
    accuracy_global: float | None = None
    accuracy_best: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    active_mean: float | None = None
    idle_share: float | None = None
    turn_s: float | None = None  # from one activation of a worker to its next
    target: float | None = None
    target_s: float | None = None  # None: not reached
    target_bytes: int | None = None
    target_epochs: float | None = None
    target_energy_j: float | None = None  # None: not reached, or energy was not counted
    energy_j: float | None = None  # of all rounds and workers; None: energy was not counted
    epsilon: float | None = None  # largest of all workers; None: training was not private
    accuracy_worst: float | None = None  # mean accuracy of the worst tenth of the workers
    accuracy_jain: float | None = None  # Jain's index of the workers' accuracies
    compute_share: float | None = None  # of worker time until the target, or else until the end
    transfer_share: float | None = None
    wait_others_share: float | None = None
    wait_round_share: float | None = None
    clock: str = "simulated time"  # what `clock_s` is
    planned: bool = False  # planning only: nothing was trained


def default_target(runs: Sequence[RunData]) -> float | None:
    """Return the largest default target that at least one run reached."""
    best = max((best_accuracy(run.records) or 0.0 for run in runs), default=0.0)
    return max((t for t in TARGETS if t <= best), default=None)


def summarise(runs: Sequence[RunData], target: float | None = None) -> list[RunSummary]:
    """Return the numbers of every run, against the given target or the default one."""
    chosen = default_target(runs) if target is None else target
    pairs = zip(runs, run_labels(runs), strict=True)
    return [_summary(run, label, chosen) for run, label in pairs]


def _summary(run: RunData, label: str, target: float | None) -> RunSummary:
    names = (label, mechanism_of(run).title, run_status(run))
    if not run.records:
        return RunSummary(
            *names, 0, 0.0, 0, 0, 0.0,
            target=target, clock=clock_name([run]), planned=is_planned(run),
        )  # fmt: skip
    rows, last = run.records, run.records[-1]
    score = (evaluated_rounds(rows) or [last])[-1]
    reached = None if target is None else first_reaching(rows, target)
    fairness = fairness_of(score.get("worker_accuracy"))
    shares = time_shares(until_target(rows, target))
    parts = (None,) * 4 if shares is None else shares.parts
    return RunSummary(
        *names,
        rounds=len(rows),
        clock_s=last.clock_s,
        wire_bytes=last.wire_bytes_total,
        endpoint_bytes=last.endpoint_bytes_total,
        epochs=last.epochs_total,
        accuracy=known(score.accuracy),
        accuracy_std=known(score.get("accuracy_std")),
        accuracy_global=known(score.get("accuracy_global")),
        accuracy_best=best_accuracy(rows),
        staleness_mean=sum(r.staleness_mean for r in rows) / len(rows),
        staleness_max=max(r.staleness_max for r in rows),
        active_mean=sum(r.active for r in rows) / len(rows),
        idle_share=idle_share(rows),
        turn_s=_activation_interval_s(rows),
        target=target,
        target_s=reached.clock_s if reached else None,
        target_bytes=reached.wire_bytes_total if reached else None,
        target_epochs=reached.epochs_total if reached else None,
        target_energy_j=energy_until(rows, reached) if reached else None,
        energy_j=energy_until(rows, last),
        epsilon=max((e for r in rows if (e := known(r.get("epsilon"))) is not None), default=None),
        accuracy_worst=fairness.worst_decile if fairness else None,
        accuracy_jain=fairness.jain if fairness else None,
        compute_share=parts[0],
        transfer_share=parts[1],
        wait_others_share=parts[2],
        wait_round_share=parts[3],
        clock=clock_name([run]),
        planned=is_planned(run),
    )


def energy_until(records: Sequence[RoundRecord], last: RoundRecord) -> float | None:
    """Return the joules of all rounds up to one; None where energy was not counted."""
    spent = [known(r.get("energy_j")) for r in records if r.round <= last.round]
    counted = [joules for joules in spent if joules is not None]
    return sum(counted) if counted and len(counted) == len(spent) else None


def idle_share(records: Sequence[RoundRecord]) -> float | None:
    """Return the share of worker time spent neither training nor exchanging models."""
    shares = time_shares(records)
    return None if shares is None else shares.waiting


def _activation_interval_s(records: Sequence[RoundRecord]) -> float | None:
    """Return worker-seconds per activation: the mean time between activations of a worker."""
    activations = sum(r.active for r in records)
    alive_s = sum(r.alive * r.duration_s for r in records)
    return alive_s / activations if activations else None
