"""Theorem 1 and Theorem 2 held against a recorded run of a strongly convex problem.

The run is repeated from its configuration, for as many rounds as were recorded and compared with
them, so that every model it ever had can be looked at. The constants are computed, not guessed: F*
to 1e-10, xi_i as the largest gradient divergence at any model that worker i really started a step
from, g_i* exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array

from dystop.control.aggregation import mix
from dystop.control.stopping import Stop
from dystop.errors import ConfigError, RunFolderError, VerificationError, shell_command
from dystop.experiments.build import Built, build, load_data, split_data
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.run_folder import CONFIG, open_run
from dystop.plan import Mix, Plan
from dystop.record import RoundRecord
from dystop.simulator.loop import begin, simulate
from dystop.simulator.state import State
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
    tau_max: int
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
    """Repeat a recorded run, as far as it went, and compute both theorems for it.

    Raises:
        RunFolderError: Where nothing was recorded, or a testbed did it.
        VerificationError: Where the repeated run is another one.
    """
    data = open_run(folder)
    if data.info.get("kind") == "testbed":
        way = shell_command("run", folder / CONFIG)
        raise RunFolderError(
            f"{folder}: a run of the testbed, whose models are gone and cannot be made again; "
            f"simulate the same and hold the theorems against that: {way}"
        )
    if not data.records:
        way = shell_command("resume", folder)
        raise RunFolderError(f"{folder}: no round is recorded yet; try: {way}")
    return bound_of_experiment(read_experiment(folder / CONFIG), on_round, data.records)


def bound_of_experiment(
    experiment: Experiment,
    on_round: OnRound = lambda done, all_: None,
    recorded: Sequence[RoundRecord] = (),
) -> BoundReport:
    """Run an experiment and compute both theorems for it; ends with the recorded rounds, if any."""
    _check(experiment)
    problem = regression_of(experiment)
    eta = experiment.training.learning_rate
    rough = bound.Constants(problem.mu, problem.smoothness, np.zeros(1), np.zeros(1))
    bound.check_step(rough, eta)
    _, best = convex.minimum(problem)
    built = _until(recorded, build(_untested(experiment)))
    notes, xi, start = _follow(built, problem, best, on_round, recorded)
    g_star = convex.local_noise(problem, experiment.training.batch)
    constants = bound.Constants(problem.mu, problem.smoothness, xi, g_star)
    able = experiment.mechanism.capabilities()
    history = bound.History(problem.share, notes.rows, able.warm_start)
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
        tau_max=int(history.largest_staleness[-1]),
        durations_s=notes.clock_s,
        staleness_bound=able.queue_bound,
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
        raise _silent(", ".join(found))


def _silent(reason: str) -> ConfigError:
    return ConfigError(
        f"Theorem 1 says nothing about this run ({reason}): it is about one local step on a "
        f"strongly convex loss, pulled models and eager publishing. Try: {RECIPE}"
    )


def _beyond(mechanism: Mechanism) -> bool:
    able = mechanism.capabilities()
    return able.server or able.pushes or able.deltas or able.signed_rows


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


def _until(recorded: Sequence[RoundRecord], built: Built) -> Built:
    """The same run, ending where the recorded one did: a target may have stopped it, or a person.

    The horizon of the mechanism stays what it was.
    """
    if not recorded:
        return built
    return replace(built, components=replace(built.components, stop=Stop(rounds=len(recorded))))


def _follow(
    built: Built,
    problem: convex.Regression,
    best: float,
    on_round: OnRound,
    recorded: Sequence[RoundRecord],
) -> tuple[_Notes, Floats, float]:
    """Run once, looking at every model on the way; returns notes, xi and F(w_0) - F*."""
    noting = _Noting(built.components.mechanism)
    parts = replace(built.components, mechanism=cast(Mechanism, noting))
    first = parts.trainer.initial()[0].double().cpu().numpy()
    start = convex.value(problem, first) - best
    xi = convex.divergence(problem, first)
    state, notes = begin(parts), _Notes()
    models = _models(state)
    notes.gap.append(convex.value(problem, problem.share @ models) - best)
    before = state
    for record, after in simulate(parts, state):
        _check_same(record, recorded)
        plan = noting.plans[record.round - 1]
        rows = _rows(plan)
        mixed = mix(_matrix(rows, len(models)), models)
        for worker, point in zip(rows.receiver, mixed, strict=True):
            xi[worker] = max(xi[worker], convex.divergence(problem, point)[worker])
        _note_queues(notes, before, parts.mechanism.capabilities().queue_bound)
        models, before = _models(after), after
        notes.rows.append(rows)
        notes.gap.append(convex.value(problem, problem.share @ models) - best)
        notes.clock_s = record.clock_s
        on_round(record.round, parts.stop.rounds)
    return notes, xi, start


def _check_same(record: RoundRecord, recorded: Sequence[RoundRecord]) -> None:
    """Refuse to speak of a run that is not the recorded one; rounding may differ by machine."""
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
            f"round {record.round} came out differently when the run was repeated, so nothing can "
            "be said about the recorded one; 'dystop verify RUN' shows where they part"
        )


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
        raise _silent("its mechanism mixes in several stages or other than linearly, or sets steps")
    rows = plan.mixes[0]
    if not np.array_equal(np.sort(plan.active), rows.receiver):
        raise _silent("its mechanism also mixes models of workers that it does not activate")
    return rows


def _note_queues(notes: _Notes, state: State, limit: float | None) -> None:
    """Gamma and queue pressure of the round that opens at this state."""
    if limit is None:
        return
    control = state.control
    notes.gamma = max(notes.gamma, lyapunov.gamma(control.staleness, limit))
    notes.pressure += lyapunov.queue_pressure(control.queue, control.staleness, limit)
