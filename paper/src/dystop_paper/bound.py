"""`dystop bound`: compare Theorems 1 and 2 with a recorded run of a strongly convex problem.

The run is repeated from its configuration for as many rounds as were recorded, because the theorems
need every model of the run. Each repeated round is compared with its record. All constants are
computed: F* to 1e-10, xi_i as the largest gradient divergence at any model from which worker i
started a step, g_i* exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array

from dystop.config import Experiment, read_experiment
from dystop.control.activation import Drift, summed_weight
from dystop.control.aggregation import mix
from dystop.control.stopping import Stop
from dystop.errors import ConfigError, RunFolderError, VerificationError, shell_command
from dystop.folders.run_folder import CONFIG, open_run
from dystop.plan import Mix, Plan
from dystop.record import RoundRecord
from dystop.runs.building import Built, build, load_data, split_data
from dystop.simulator.round import begin, simulate
from dystop.simulator.state import State
from dystop.sparse import Floats
from dystop.types import Mechanism, Memory, View
from dystop_paper.theory import bound, convex, lyapunov

MODEL = "softmax-unit"
RECIPE = (
    "dystop run model.name=softmax-unit training.l2=0.1 training.local_steps=1 "
    "training.learning_rate=0.1 data.train_limit=2000 fleet.workers=10"
)
OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class BoundReport:
    """The measured gap and the bounds of the theorems, per round (index 0: before round 1)."""

    gap: Floats  # F(w_t) - F*, [T + 1]
    recursion: Floats
    theorem: Floats
    literal: Floats
    constants: bound.Constants
    eta: float
    best: float  # F*
    start: float  # F(w_0) - F*
    tau_max: int
    durations_s: float  # sum of H_t
    staleness_bound: float | None
    trade_off: float | None
    gamma: float  # the largest Gamma of any round
    pressure: float  # sum over rounds of sum_i q_i (tau_i - bound)

    @property
    def rounds(self) -> int:
        """The number of rounds, T."""
        return len(self.gap) - 1

    @property
    def holds(self) -> bool:
        """Whether the measured gap stays below the recursion in every round."""
        return bool((self.gap <= self.recursion).all())

    @property
    def gap_seconds(self) -> float | None:
        """Theorem 2's gap T Gamma / V, with the largest Gamma of the run; None if undefined."""
        if self.trade_off is None or self.staleness_bound is None:
            return None
        return lyapunov.gap(self.rounds, self.gamma, self.trade_off)


@dataclass
class _PlanRecorder:
    """A mechanism that keeps every plan of the mechanism inside it."""

    inner: Mechanism
    plans: list[Plan] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        plan, memory = self.inner.plan(memory, view)
        self.plans.append(plan)
        return plan, memory


@dataclass
class _Measurements:
    """The quantities of every round that the theorems need."""

    gap: list[float] = field(default_factory=list)
    rows: list[Mix] = field(default_factory=list)
    gamma: float = 0.0
    pressure: float = 0.0
    clock_s: float = 0.0


def bound_of(folder: Path, on_round: OnRound = lambda done, all_: None) -> BoundReport:
    """Repeat the recorded rounds of a run and compute both theorems for them.

    Raises:
        RunFolderError: If no round is recorded, or if it is a testbed run.
        TrustError: If somebody else created the run, and it names code.
        VerificationError: If a repeated round differs from its record.
    """
    data = open_run(folder)
    if data.info.get("kind") == "testbed":
        simulate_command = shell_command("run", folder / CONFIG)
        raise RunFolderError(
            f"{folder}: a testbed run cannot be repeated, so its models are not available; "
            f"simulate its configuration, then use 'dystop bound' on that run: {simulate_command}"
        )
    if not data.records:
        resume_command = shell_command("resume", folder)
        raise RunFolderError(f"{folder}: no round is recorded yet; resume with: {resume_command}")
    experiment = read_experiment(folder / CONFIG)
    return bound_of_experiment(experiment, on_round, data.records)


def bound_of_experiment(
    experiment: Experiment,
    on_round: OnRound = lambda done, all_: None,
    recorded: Sequence[RoundRecord] = (),
) -> BoundReport:
    """Run an experiment and compute both theorems for it; stop after the rounds in `recorded`."""
    _check(experiment)
    problem = regression_of(experiment)
    eta = experiment.training.learning_rate
    rough = bound.Constants(problem.mu, problem.smoothness, np.zeros(1), np.zeros(1))
    bound.check_step(rough, eta)
    _, best = convex.minimum(problem)
    built = _stop_after(recorded, build(_without_evaluation(experiment)))
    measured, xi, start = _measure(built, problem, best, on_round, recorded)
    g_star = convex.local_noise(problem, experiment.training.batch)
    constants = bound.Constants(problem.mu, problem.smoothness, xi, g_star)
    able = experiment.mechanism.capabilities()
    history = bound.History(problem.share, measured.rows, able.warm_start)
    contraction = bound.rho(problem.mu, eta)
    proved, printed = bound.delta(constants, eta), bound.delta_literal(constants, eta)
    return BoundReport(
        gap=np.array(measured.gap),
        recursion=bound.recursion(history, contraction, proved, start),
        theorem=bound.theorem(history, contraction, proved, start),
        literal=bound.literal(history, contraction, printed, start),
        constants=constants,
        eta=eta,
        best=best,
        start=start,
        tau_max=int(history.largest_staleness[-1]),
        durations_s=measured.clock_s,
        staleness_bound=able.queue_bound,
        trade_off=_trade_off(experiment),
        gamma=measured.gamma,
        pressure=measured.pressure,
    )


def _trade_off(experiment: Experiment) -> float | None:
    """Return V as it weighs against the summed drift of Theorem 2; None: the mechanism has none."""
    mechanism = experiment.mechanism
    V = getattr(mechanism, "V", None)
    drift: Drift = getattr(mechanism, "drift", "sum")
    return None if V is None else summed_weight(V, drift, experiment.fleet.workers)


def _check(experiment: Experiment) -> None:
    """Refuse an experiment that the theorem does not cover, and say what it covers."""
    training = experiment.training
    wrong = {
        f"model.name = {experiment.model.name!r}": experiment.model.name != MODEL,
        f"training.l2 = {training.l2:g}": training.l2 <= 0,
        f"training.local_steps = {training.local_steps}": training.local_steps != 1,
        f"engine.publish = {experiment.engine.publish!r}": experiment.engine.publish != "eager",
        f"staleness.rule = {experiment.staleness.rule!r}": experiment.staleness.rule != "none",
        f"world.outages.loss = {experiment.world.outages.loss:g}": experiment.world.outages.loss
        > 0,
        f"mechanism {experiment.mechanism.name}": _is_not_covered(experiment.mechanism),
    }
    if found := [what for what, is_wrong in wrong.items() if is_wrong]:
        raise _not_covered(", ".join(found))


def _not_covered(reason: str) -> ConfigError:
    return ConfigError(
        f"Theorem 1 does not cover this run ({reason}): it needs one local step on a strongly "
        f"convex loss, pulled models and eager publishing. Try: {RECIPE}"
    )


def _is_not_covered(mechanism: Mechanism) -> bool:
    able = mechanism.capabilities()
    return able.server or able.pushes or able.deltas or able.signed_rows


def regression_of(experiment: Experiment) -> convex.Regression:
    """Return the convex problem that an experiment trains on, with its data split."""
    data = load_data(experiment)
    shards = tuple(split_data(experiment, data))
    scale = 255.0 if data.x_train.dtype == np.uint8 else 1.0
    per_channel = (1, -1, *(1,) * (data.x_train.ndim - 2))
    mean, std = (np.reshape(v, per_channel) for v in (data.mean, data.std))
    inputs = (data.x_train / scale - mean) / std
    x, y = convex.unit_rows(inputs), data.y_train.astype(np.int64)
    return convex.Regression(x, y, shards, data.classes, experiment.training.l2)


def _without_evaluation(experiment: Experiment) -> Experiment:
    """Return the experiment without evaluations, because the theorems need no accuracy."""
    rare = replace(experiment.evaluate, every_s=0.0, every_rounds=2**31, samples=1)
    return replace(experiment, evaluate=rare)


def _stop_after(recorded: Sequence[RoundRecord], built: Built) -> Built:
    """Return the simulation, stopped after the recorded rounds.

    A target or the user may have stopped the recorded run early. The mechanism keeps its horizon.
    """
    if not recorded:
        return built
    return replace(
        built, components=replace(built.components, stop=Stop(rounds=len(recorded), diverged=0.0))
    )


def _measure(
    built: Built,
    problem: convex.Regression,
    best: float,
    on_round: OnRound,
    recorded: Sequence[RoundRecord],
) -> tuple[_Measurements, Floats, float]:
    """Run once and measure every model; return the measurements, xi and F(w_0) - F*."""
    recorder = _PlanRecorder(built.components.mechanism)
    components = replace(built.components, mechanism=cast(Mechanism, recorder))
    first = components.trainer.initial()[0].double().cpu().numpy()
    start = convex.value(problem, first) - best
    xi = convex.divergence(problem, first)
    state, measured = begin(components), _Measurements()
    models = _models(state)
    measured.gap.append(convex.value(problem, problem.share @ models) - best)
    before = state
    for record, after in simulate(components, state):
        _check_same(record, recorded)
        plan = recorder.plans[record.round - 1]
        rows = _rows(plan)
        mixed = mix(_matrix(rows, len(models)), models)
        for worker, point in zip(rows.receiver, mixed, strict=True):
            xi[worker] = max(xi[worker], convex.divergence(problem, point)[worker])
        _measure_queues(measured, before, components.mechanism.capabilities().queue_bound)
        models, before = _models(after), after
        measured.rows.append(rows)
        measured.gap.append(convex.value(problem, problem.share @ models) - best)
        measured.clock_s = record.clock_s
        on_round(record.round, components.stop.rounds)
    return measured, xi, start


def _check_same(record: RoundRecord, recorded: Sequence[RoundRecord]) -> None:
    """Refuse a repeated round that differs from its record by more than rounding."""
    if not recorded:
        return
    old = recorded[record.round - 1]
    same = (old.active, old.links, list(old.staleness_histogram)) == (
        record.active,
        record.links,
        list(record.staleness_histogram),
    )
    if not same or not math.isclose(old.clock_s, record.clock_s, rel_tol=1e-6):
        raise VerificationError(
            f"round {record.round} differs from its record when the run is repeated, so the "
            "theorems cannot be checked; 'dystop verify RUN' shows the first difference"
        )


def _models(state: State) -> Floats:
    """Return the current model of every worker, [N, W]."""
    latest: Floats = state.models.latest.double().cpu().numpy().copy()
    return latest


def _matrix(rows: Mix, workers: int) -> Any:
    return csr_array((rows.weight, rows.source, rows.indptr), shape=(len(rows.receiver), workers))


def _rows(plan: Plan) -> Mix:
    """Return the mixing rows of the active workers; refuse a plan that Lemma 1 does not cover."""
    plain = len(plan.mixes) == 1 and plan.mixes[0].kind == "linear"
    if not plain or plan.rate is not None or plan.steps is not None:
        raise _not_covered("its mechanism mixes in stages or not linearly, or sets steps or rates")
    rows = plan.mixes[0]
    if not np.array_equal(np.sort(plan.active), rows.receiver):
        raise _not_covered("its mechanism also mixes models of workers that it does not activate")
    return rows


def _measure_queues(measured: _Measurements, state: State, limit: float | None) -> None:
    """Add Gamma and the queue pressure of the round that starts from this state."""
    if limit is None:
        return
    control = state.control
    measured.gamma = max(measured.gamma, lyapunov.gamma(control.staleness, limit))
    measured.pressure += lyapunov.queue_pressure(control.queue, control.staleness, limit)
