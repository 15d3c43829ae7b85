"""Theorem 1 and Theorem 2 held against a recorded run of a strongly convex problem.

The run is repeated from its configuration, so that every model it ever had can be looked at. The
constants are computed, not guessed: F* to 1e-10, xi_i as the largest gradient divergence at any
model that worker i really started a step from, g_i* exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array

from dystop.control.aggregation import mix
from dystop.engine.rounds import begin, simulate
from dystop.engine.state import State
from dystop.errors import ConfigError
from dystop.experiments.build import Built, build, load_data, split_data
from dystop.experiments.spec import Experiment, read_experiment
from dystop.experiments.store import CONFIG, run_folder
from dystop.plan import Mix, Plan
from dystop.sparse import Floats
from dystop.theory import bound, convex, lyapunov
from dystop.types import Mechanism, Memory, View

MODEL = "softmax-unit"
RECIPE = (
    "dystop run model.name=softmax-unit training.l2=0.1 training.local_steps=1 "
    "training.learning_rate=0.1 data.train_limit=2000 fleet.workers=10"
)
OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class BoundReport:
    """What was measured and what the theorems say, round by round (index 0: before round 1)."""

    gap: Floats  # F(w_t) - F*, [T + 1]
    recursion: Floats
    theorem: Floats
    literal: Floats
    constants: bound.Constants
    eta: float
    best: float  # F*
    start: float  # F(w_0) - F*
    durations_s: float  # sum of H_t
    staleness_bound: float | None
    trade_off: float | None
    gamma: float  # largest of any round
    pressure: float  # sum over rounds of sum_i q_i (tau_i - bound)

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.gap) - 1

    @property
    def holds(self) -> bool:
        """Whether the measured gap stays below the recursion in every round."""
        return bool((self.gap <= self.recursion).all())

    @property
    def gap_seconds(self) -> float | None:
        """Theorem 2's gap T Gamma / V, with the largest Gamma that was met."""
        if self.trade_off is None or self.staleness_bound is None:
            return None
        return lyapunov.gap(self.rounds, self.gamma, self.trade_off)


@dataclass
class _Noting:
    """A mechanism that is asked as usual and whose plans are kept."""

    inner: Mechanism
    plans: list[Plan] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        plan, memory = self.inner.plan(memory, view)
        self.plans.append(plan)
        return plan, memory


@dataclass
class _Notes:
    """What the theorems need of every round."""

    gap: list[float] = field(default_factory=list)
    rows: list[Mix] = field(default_factory=list)
    gamma: float = 0.0
    pressure: float = 0.0
    clock_s: float = 0.0


def bound_of(folder: Path, on_round: OnRound = lambda done, all_: None) -> BoundReport:
    """Repeat a recorded run and compute both theorems for it."""
    run_folder(folder)
    return bound_of_experiment(read_experiment(folder / CONFIG), on_round)


def bound_of_experiment(
    experiment: Experiment, on_round: OnRound = lambda done, all_: None
) -> BoundReport:
    """Run an experiment and compute both theorems for it."""
    _check(experiment)
    problem = regression_of(experiment)
    _, best = convex.minimum(problem)
    built = build(_untested(experiment))
    eta = experiment.training.learning_rate
    rough = bound.Constants(problem.mu, problem.smoothness, np.zeros(1), np.zeros(1))
    bound.check_step(rough, eta)
    notes, xi, start = _follow(built, problem, best, on_round)
    g_star = convex.local_noise(problem, experiment.training.batch)
    constants = bound.Constants(problem.mu, problem.smoothness, xi, g_star)
    history = bound.History(problem.share, notes.rows, experiment.mechanism.warm_start)
    contraction = bound.rho(problem.mu, eta)
    proved, printed = bound.delta(constants, eta), bound.delta_literal(constants, eta)
    return BoundReport(
        gap=np.array(notes.gap),
        recursion=bound.recursion(history, contraction, proved, start),
        theorem=bound.theorem(history, contraction, proved, start),
        literal=bound.literal(history, contraction, printed, start),
        constants=constants,
        eta=eta,
        best=best,
        start=start,
        durations_s=notes.clock_s,
        staleness_bound=experiment.mechanism.queue_bound,
        trade_off=getattr(experiment.mechanism, "V", None),
        gamma=notes.gamma,
        pressure=notes.pressure,
    )


def _check(experiment: Experiment) -> None:
    """Refuse what the theorem does not speak of, and say what it does."""
    training = experiment.training
    wrong = {
        f"model.name = {experiment.model.name!r}": experiment.model.name != MODEL,
        f"training.l2 = {training.l2:g}": training.l2 <= 0,
        f"training.local_steps = {training.local_steps}": training.local_steps != 1,
        f"engine.publish = {experiment.engine.publish!r}": experiment.engine.publish != "eager",
        f"staleness.rule = {experiment.staleness.rule!r}": experiment.staleness.rule != "none",
        f"world.outages.loss = {experiment.world.outages.loss:g}": experiment.world.outages.loss
        > 0,
        f"mechanism {experiment.mechanism.name}": _beyond(experiment.mechanism),
    }
    if found := [what for what, is_wrong in wrong.items() if is_wrong]:
        raise ConfigError(
            f"Theorem 1 says nothing about this run ({', '.join(found)}): it is about one local "
            f"step on a strongly convex loss, pulled models and eager publishing. Try: {RECIPE}"
        )


def _beyond(mechanism: Mechanism) -> bool:
    return mechanism.server or mechanism.pushes or mechanism.deltas or mechanism.signed_rows


def regression_of(experiment: Experiment) -> convex.Regression:
    """The convex problem that an experiment trains on, with its split."""
    data = load_data(experiment)
    shards = tuple(split_data(experiment, data))
    scale = 255.0 if data.x_train.dtype == np.uint8 else 1.0
    per_channel = (1, -1, 1, 1)
    mean, std = (np.reshape(v, per_channel) for v in (data.mean, data.std))
    inputs = (data.x_train / scale - mean) / std
    x, y = convex.unit_rows(inputs), data.y_train.astype(np.int64)
    return convex.Regression(x, y, shards, data.classes, experiment.training.l2)


def _untested(experiment: Experiment) -> Experiment:
    """The same run without tests of accuracy, which nobody reads here."""
    rare = replace(experiment.evaluate, every_s=0.0, every_rounds=2**31, samples=1)
    return replace(experiment, evaluate=rare)


def _follow(
    built: Built, problem: convex.Regression, best: float, on_round: OnRound
) -> tuple[_Notes, Floats, float]:
    """Run once, looking at every model on the way; returns notes, xi and F(w_0) - F*."""
    noting = _Noting(built.parts.mechanism)
    parts = replace(built.parts, mechanism=cast(Mechanism, noting))
    first = parts.trainer.initial()[0].double().cpu().numpy()
    start = convex.value(problem, first) - best
    xi = convex.divergence(problem, first)
    state, notes = begin(parts), _Notes()
    models = _models(state)
    notes.gap.append(convex.value(problem, problem.share @ models) - best)
    before = state
    for record, after in simulate(parts, state):
        plan = noting.plans[record.round - 1]
        rows = _rows(plan)
        mixed = mix(_matrix(rows, len(models)), models)
        for worker, point in zip(rows.receiver, mixed, strict=True):
            xi[worker] = max(xi[worker], convex.divergence(problem, point)[worker])
        _note_queues(notes, before, parts.mechanism.queue_bound)
        models, before = _models(after), after
        notes.rows.append(rows)
        notes.gap.append(convex.value(problem, problem.share @ models) - best)
        notes.clock_s = record.clock_s
        on_round(record.round, parts.stop.rounds)
    return notes, xi, start


def _models(state: State) -> Floats:
    """Every worker's model as it stands, [N, W]."""
    latest: Floats = state.models.latest.double().cpu().numpy().copy()
    return latest


def _matrix(rows: Mix, workers: int) -> Any:
    return csr_array((rows.weight, rows.source, rows.indptr), shape=(len(rows.receiver), workers))


def _rows(plan: Plan) -> Mix:
    """The rows that the active workers mixed; refuses a plan that Lemma 1 does not cover."""
    plain = len(plan.mixes) == 1 and plan.mixes[0].kind == "linear"
    if not plain or plan.rate is not None or plan.steps is not None:
        raise ConfigError("Theorem 1 covers one stage of linear mixing with one step; see --help")
    rows = plan.mixes[0]
    if not np.array_equal(np.sort(plan.active), rows.receiver):
        raise ConfigError("Theorem 1 covers active workers only; this mechanism mixes others too")
    return rows


def _note_queues(notes: _Notes, state: State, limit: float | None) -> None:
    """Gamma and queue pressure of the round that opens at this state."""
    if limit is None:
        return
    books = state.books
    notes.gamma = max(notes.gamma, lyapunov.gamma(books.staleness, limit))
    notes.pressure += lyapunov.queue_pressure(books.queue, books.staleness, limit)
