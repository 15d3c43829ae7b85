"""Runs the simulator and writes down what it observed, as a testbed would: a synthetic trace."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dystop.config import read_experiment, to_toml
from dystop.control.laws import Timetable, timetable
from dystop.folders.run_folder import (
    RecordLog,
    create_run,
    first_info,
    records_sha256,
    update_info,
)
from dystop.plan import Plan
from dystop.runs.building import build
from dystop.simulator.round import begin, simulate
from dystop.simulator.state import Components
from dystop.types import Mechanism, View
from dystop.world import Overhead
from dystop.world.progress import SAME_S
from dystop.world.trace import TRACE, Orders, Trainings, trace_line, without_repeats


def noting(mechanism: Mechanism, seen: list[tuple[View, Plan]]) -> Mechanism:
    """The same mechanism, which also writes down what it knew and what it decided."""

    class Noting(type(mechanism)):  # type: ignore[misc]
        def plan(self, memory: Any, view: View) -> tuple[Plan, Any]:
            plan, after = super().plan(memory, view)
            seen.append((view, plan))
            return plan, after

    return Noting(**{f.name: getattr(mechanism, f.name) for f in fields(mechanism)})


def line_of(parts: Components, view: View, plan: Plan, outcome: Any) -> dict[str, Any]:
    """The line of a round, with the reports that fit its timing law."""
    steps = parts.steps[plan.active] if plan.steps is None else plan.steps
    remaining = np.append(view.remaining_s, np.zeros(view.fleet.nodes - view.fleet.workers))
    training = view.step_s[plan.active] * steps
    table = timetable(parts.engine.law, plan, outcome.link_s, remaining, training)
    trained = Trainings(plan.active, np.full(len(plan.active), view.t), steps, training)
    passive = parts.engine.timing == "testbed"
    return trace_line(
        view,
        plan,
        outcome,
        _stale(plan, remaining, table.link_begin_s),
        _orders(plan, table, remaining, passive=passive),
        None if plan.join else trained,
    )


def _orders(plan: Plan, table: Timetable, remaining_s: np.ndarray, *, passive: bool) -> Orders:
    """The orders of a round; the testbed's law also has those of inactive receivers."""
    links, exchange_s = plan.links, np.zeros(len(remaining_s))
    np.maximum.at(exchange_s, links.dst[~links.background], table.link_end_s[~links.background])
    exchange_s[plan.active] = table.comm_s
    node = np.unique(np.concatenate([plan.active, links.dst if passive else plan.active]))
    train = np.isin(node, plan.active)
    waited_s = np.where(train, remaining_s[node], 0.0)
    return Orders(node, train, waited_s, exchange_s[node], np.zeros(len(node), bool))


def _stale(plan: Plan, remaining_s: np.ndarray, begin_s: np.ndarray) -> np.ndarray:
    """Which links read an older model than that of their sender's newest training."""
    links = plan.links
    ended = remaining_s[links.src] <= begin_s + SAME_S
    waits = (links.stage > 0) | plan.synchronous | links.pushed
    return ~ended & ~(waits & np.isin(links.src, plan.active))


def play_and_record(parts: Components) -> tuple[list[Any], Any, list[dict[str, Any]]]:
    """Records, last state and the whole lines of the trace of a simulated run."""
    seen: list[tuple[View, Plan]] = []
    watched = replace(parts, mechanism=noting(parts.mechanism, seen))
    records, lines = [], []
    for record, state in simulate(watched, begin(watched)):
        records.append(record)
        lines.append(line_of(parts, *seen[record.round - 1], state.control.last))
    return records, state, lines


def write_trace(folder: Path, lines: list[dict[str, Any]]) -> None:
    """The file, as the coordinator writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = zip(lines, [None, *lines[:-1]], strict=True)
    short = [json.dumps(without_repeats(*pair), allow_nan=False) for pair in pairs]
    (folder / TRACE).write_text("".join(line + "\n" for line in short))


def record_experiment(
    out: Path, words: list[str], name: str = "trial", overhead: Overhead | None = None
) -> Path:
    """A run folder as the testbed leaves it, made by the simulator, on machines with overhead."""
    experiment = read_experiment(None, [*words, f"name={name}", "engine.publish=on_completion"])
    built = build(experiment)
    world = built.components.world.with_overhead(overhead or Overhead())
    records, _, lines = play_and_record(replace(built.components, world=world))
    folder = create_run(out, name, to_toml(experiment), first_info(experiment), built.fleet)
    write_trace(folder, lines)
    with RecordLog(folder) as log:
        for record in records:
            log.append(record)
    update_info(
        folder, status="finished", stop_reason="over", records_sha256=records_sha256(folder)
    )
    return folder
