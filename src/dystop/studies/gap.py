"""`dystop gap`: how much the simulator differs from a testbed run.

Two simulations are compared with the recorded run. The *replay* uses the times and availability
that the testbed observed, so only the rules of the simulator can differ. The *simulation* uses the
channel and compute models of the configuration, so it also shows the errors of these models. Both
publish on completion and follow the timing law `testbed`, as real workers do (ADR 0006). Both end
after the number of recorded rounds.

Neither has the time that machines add: transfers are slower than their links, and a round costs
messages, disk and planning. The replay leaves it out of every round, but opens each round when the
testbed did. The sum of its rounds is therefore no prediction for faster machines: trainings went on
meanwhile, and without that time rounds may have to wait for them. A further simulation
adds the measured time to every transfer and round. If the configuration names another law, one more
shows what that law would give.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dystop.config import Experiment, as_replay, read_experiment
from dystop.control.laws import LAWS, TestbedLaw
from dystop.control.stopping import Stop
from dystop.errors import ConfigError, RunFolderError
from dystop.folders.folder_kinds import TESTBED_RUN
from dystop.folders.run_folder import CONFIG, RunData, open_run
from dystop.record import RoundRecord
from dystop.recorders.topology import TopologyRecorder
from dystop.runs.building import Built, build, check_same_data
from dystop.simulator import no_round, run_rounds
from dystop.simulator.round import begin
from dystop.studies.trace_metrics import (
    Errors,
    Learning,
    Pace,
    PlanSimilarity,
    errors_of,
    learning,
    pace,
    plan_similarity,
)
from dystop.world import Overhead, Trace, World, read_trace
from dystop.world.trace import TRACE

TESTBED_LAW = TestbedLaw.name
OTHER_LAW = "other law"
WITH_OVERHEAD = "with overhead"
TASKS = ("replay", "simulation", WITH_OVERHEAD, OTHER_LAW)
"""The names of the simulations."""

OnRound = Callable[[str, int, int], None]
"""Receives the name of the simulation, the rounds done, and the rounds planned."""


@dataclass(frozen=True)
class Side:
    """One simulation and its differences from the recorded run."""

    law: str
    records: list[RoundRecord]
    durations: Errors
    plans: PlanSimilarity | None
    learning: Learning
    pace: Pace


@dataclass(frozen=True)
class GapReport:
    """Everything that `dystop gap` measures."""

    run: RunData
    rounds: int
    real: Learning
    real_pace: Pace
    replay: Side
    simulation: Side
    overhead: Overhead  # what the machines of the run added, on average
    with_overhead: Side  # a simulation that adds it, under the testbed's law
    other_law: Side | None  # a simulation under the other law; None: there is no other
    link_model: Errors  # transfer seconds, predicted by the channel model
    link_estimate: Errors  # transfer seconds, estimated by the coordinator at the round's start
    step_model: Errors  # training seconds, predicted by the compute model
    step_estimate: Errors  # training seconds, estimated by the coordinator at the round's start


def gap_of(
    folder: Path,
    on_round: OnRound,
    *,
    train: bool = True,
    law: str = TESTBED_LAW,
) -> GapReport:
    """Replay and simulate a recorded run, and compare both with it.

    Args:
        folder: Folder of the run; an interrupted one is compared as far as it got.
        on_round: Called after every simulated round.
        train: Whether the simulations train models; otherwise times and plans are compared alone.
        law: Timing law of the simulation. Under one whose rounds do not end with their exchanges,
            the run is replayed under the testbed's law.

    Raises:
        RunFolderError: If the run has no trace, has no rounds, or is still running.
        DataError: If its data are no longer what they were.
        TrustError: If somebody else created the run, and it names code.
    """
    if law not in LAWS:
        raise ConfigError(f"command line: --timing {law}: no timing law{LAWS.hint(law)}")
    data, trace = _recorded(folder)
    experiment = read_experiment(folder / CONFIG)
    other = other_law(law, experiment.engine.timing)
    if not train:
        experiment = _planned(experiment)
    rounds = min(len(data.records), len(trace.rounds))
    compare = _Comparison(trace, data.records[:rounds], on_round)
    plain = build(_simulated(experiment, law))
    check_same_data(folder, data.fleet, plain.fleet, trains=train)
    replayed = _simulated(experiment, law if LAWS[law].ends_with_exchanges else TESTBED_LAW)
    world, model_bytes = plain.components.world, plain.components.fleet.model_bytes
    replay = compare.side("replay", build(as_replay(replace(replayed, trace=str(folder)))))
    link_model = _link_errors(trace, world, model_bytes)
    overhead = Overhead(link_model.excess_s, replay.durations.excess_s)
    return GapReport(
        run=data,
        rounds=rounds,
        real=learning(compare.real, compare.real),
        real_pace=pace(compare.real),
        replay=replay,
        simulation=compare.side("simulation", plain),
        overhead=overhead,
        with_overhead=compare.planned(WITH_OVERHEAD, experiment, TESTBED_LAW, overhead),
        other_law=compare.planned(OTHER_LAW, experiment, other) if other else None,
        link_model=link_model,
        link_estimate=_link_errors(trace, None, model_bytes),
        step_model=_step_errors(trace, world),
        step_estimate=_step_errors(trace, None),
    )


def other_law(asked: str, configured: str) -> str | None:
    """Return the law to show beside the one that was asked for; None: there is no other.

    It is the law of the configuration, or the testbed's where that one was asked for.

    >>> other_law("testbed", "paper"), other_law("paper", "paper"), other_law("testbed", "testbed")
    ('paper', 'testbed', None)
    """
    beside = configured if asked == TESTBED_LAW else TESTBED_LAW
    return None if beside == asked else beside


def _recorded(folder: Path) -> tuple[RunData, Trace]:
    data = open_run(folder)
    if not (folder / TRACE).is_file():
        raise RunFolderError(
            f"{folder}: a simulated run without a trace cannot be compared with the simulator;"
            " record a trace with: dystop testbed"
        )
    status = data.info.get("status")
    if status == "running":
        raise RunFolderError(
            f"{folder}: the run is still running (status {status!r}, {len(data.records)} rounds);"
            f" wait for its end, or if it was killed resume it with: "
            f"{TESTBED_RUN.resume_command(folder)}"
        )
    trace = read_trace(folder)
    if not data.records:
        raise RunFolderError(f"{folder}: the run has no rounds to compare")
    return data, trace


def _simulated(experiment: Experiment, law: str) -> Experiment:
    """Return the experiment as a simulation under a law; its workers publish on completion."""
    engine = replace(experiment.engine.under(law), publish="on_completion")
    return replace(experiment, trace="", engine=engine)


def _planned(experiment: Experiment) -> Experiment:
    """Return the experiment without models; the number of rounds is the only stop rule."""
    engine = replace(experiment.engine, train=False)
    return replace(experiment, engine=engine, stop=replace(experiment.stop, accuracy=0.0, loss=0.0))


@dataclass(frozen=True)
class _Comparison:
    """A recorded run, with which simulations of as many rounds are compared."""

    trace: Trace
    real: Sequence[RoundRecord]
    on_round: OnRound

    def side(self, what: str, built: Built) -> Side:
        """Simulate and compare."""
        records = self._play(built, what)
        size = min(len(self.real), len(records))
        simulated = np.array([r.duration_s for r in records[:size]])
        measured = np.array([r.duration_s for r in self.real[:size]])
        return Side(
            law=built.components.engine.timing,
            records=records,
            durations=errors_of(simulated, measured),
            plans=plan_similarity(self.trace.rounds, records, lost=True),
            learning=learning(self.real, records),
            pace=pace(records),
        )

    def planned(
        self, what: str, experiment: Experiment, law: str, overhead: Overhead | None = None
    ) -> Side:
        """Simulate without models, unless the mechanism decides by them."""
        needs_models = bool(experiment.mechanism.capabilities().needs)
        chosen = experiment if needs_models else _planned(experiment)
        built = build(_simulated(chosen, law))
        if overhead is not None:
            world = built.components.world.with_overhead(overhead)
            built = replace(built, components=replace(built.components, world=world))
        return self.side(what, built)

    def _play(self, built: Built, what: str) -> list[RoundRecord]:
        rounds, records = len(self.real), []
        stop = Stop(rounds=rounds, diverged=0.0)
        others = (r for r in built.components.recorders if not isinstance(r, TopologyRecorder))
        recorders = (TopologyRecorder(), *others)  # plans are compared
        components = replace(built.components, stop=stop, recorders=recorders)
        for record, _ in run_rounds(components, begin(components), no_round):
            records.append(record)
            self.on_round(what, record.round, rounds)
        return records


def _link_errors(trace: Trace, world: World | None, model_bytes: int) -> Errors:
    """Compare completed transfers with the channel model, or with the coordinator's estimates.

    Transfers that may have waited for their sender are left out: their time is not link time alone.
    """
    predicted, measured = [np.zeros(0)], [np.zeros(0)]
    for line in trace.rounds:
        links, share = line.links, line.links.bytes / model_bytes
        if world is not None:
            guess = world.transfer(line.round, line.opened_s, links.dst, links.src, share).seconds
        else:
            edge = line.reach.find(links.dst, links.src)
            guess = np.where(edge >= 0, np.append(line.link_s, np.nan)[edge], np.nan) * share
        clear = ~links.lost & ~line.waited
        predicted.append(guess[clear])
        measured.append(links.seconds[clear])
    return errors_of(np.concatenate(predicted), np.concatenate(measured))


def _step_errors(trace: Trace, world: World | None) -> Errors:
    """Compare reported trainings with the compute model, or with the coordinator's estimates."""
    predicted, measured = [np.zeros(0)], [np.zeros(0)]
    for line in trace.rounds:
        done = line.trained
        if world is not None:
            step_s = world.observe(line.round, line.opened_s).step_s[done.node]
        else:
            began = [trace.rounds[max(t, 1) - 1].step_s for t in done.round.tolist()]
            step_s = np.array([s[i] for s, i in zip(began, done.node, strict=True)])
        predicted.append(step_s * done.steps)
        measured.append(done.seconds)
    return errors_of(np.concatenate(predicted), np.concatenate(measured))


def to_tree(found: GapReport) -> dict[str, Any]:
    """Return all numbers as a tree for JSON."""
    sides = {"replay": found.replay, "simulation": found.simulation}
    other = found.other_law
    series = {"real": found.run.records[: found.rounds]}
    series |= {name: side.records for name, side in sides.items()}
    sides["with_overhead"] = found.with_overhead
    return {
        "run": str(found.run.path),
        "rounds": found.rounds,
        "real": {**asdict(found.real), "pace": asdict(found.real_pace)},
        **{name: _side_tree(side) for name, side in sides.items()},
        "other_law": None if other is None else _side_tree(other),
        "overhead": asdict(found.overhead),
        "links": {
            "model": _error_tree(found.link_model),
            "estimate": _error_tree(found.link_estimate),
        },
        "steps": {
            "model": _error_tree(found.step_model),
            "estimate": _error_tree(found.step_estimate),
        },
        "series": {name: _series(records) for name, records in series.items()},
    }


def _side_tree(side: Side) -> dict[str, Any]:
    return {
        "timing": side.law,
        "pace": asdict(side.pace),
        "durations": _error_tree(side.durations),
        "plans": None if side.plans is None else asdict(side.plans),
        "accuracy": asdict(side.learning),
    }


def _error_tree(errors: Errors) -> dict[str, Any]:
    return {**asdict(errors), "total": errors.total}


def _series(records: Sequence[RoundRecord]) -> dict[str, list[float | None]]:
    return {
        "clock_s": [r.clock_s for r in records],
        "duration_s": [r.duration_s for r in records],
        "accuracy": [r.accuracy for r in records],
    }
