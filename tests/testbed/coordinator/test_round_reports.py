"""Reports as an outcome, and the effect of failed and late orders on the control state."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from dystop.control.round import advance, apply_late_report, initial_state
from dystop.control.time_spent import compute_seconds
from dystop.mechanisms import MECHANISMS
from dystop.plan import Plan, join_links, links
from dystop.recorders.emulated_trainings import training_slowdown
from dystop.recorders.energy import radio_seconds
from dystop.sparse import ints
from dystop.testbed.coordinator.round_reports import (
    RoundReports,
    emulated_seconds,
    round_outcome,
    spent_by_workers,
    trace_outcome,
    traced_view,
)
from dystop.testbed.ledger.tables import read_blob, write_blob
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.types import Outcome
from dystop.world import read_trace
from dystop.world.trace import TRACE, observed_part
from support.fake_runs import plain_record
from support.strategies import random_fleet, random_view, same


def view_and_plan(n=4):
    view = replace(random_view(3, n, all_alive=True, shape="complete"), now_s=100.0)
    pulls = links(ints([0, 0, 1]), ints([1, 2, 3]))
    return view, Plan(ints([1, 0]), join_links([pulls, links(ints([3]), ints([0]), pushed=True)]))


def used(node, seconds=2.0, number=5):
    return Used(node, 0, 3, number, "ab", 500, seconds, distance=0.5)


def reports():
    first = Report(
        1, "mixed", (used(1),), (Rejected(2, 0, "timeout", 4.0, 100),), waited_s=1.0, seconds=5.0
    )
    return {0: first, 3: Report(1, "mixed", (used(0, 1.0),))}


def test_outcome_of_reports():
    view, plan = view_and_plan()
    loss = np.array([0.25, np.nan, np.nan, np.nan])
    ended = np.array([np.inf, np.inf, 90.0, 104.0])
    summary = RoundReports(reports(), 10.0, 2.0, loss, ended, samples=64, distances=True)
    got = round_outcome(plan, view, summary)
    assert (got.duration_s, got.samples) == (10.0, 64)
    assert got.link_s.tolist() == [1.0, 2.0, 0.0, 0.5]
    assert got.link_bytes.tolist() == [500, 100, 0, 500]
    assert got.lost.tolist() == [False, True, True, False]
    assert got.failed.tolist() == [True, False]
    assert got.comm_s.tolist() == [10.0, 2.5]
    assert got.idle_s == 10.0 + 6.0
    assert np.array_equal(got.loss, [np.nan, 0.25], equal_nan=True)
    assert np.array_equal(got.distance, [0.5, np.nan, np.nan, 0.5], equal_nan=True)


def test_seconds_for_the_energy_of_reports():
    # The round opens at 100 and lasts 10 s; real seconds are twice the emulated ones. Worker 0 ends
    # its training after 0.5 s, exchanges for 2.5 s and trains on to the close. Worker 1 is active,
    # but does not report: its training runs on. Worker 2 had ended before, worker 3 ends at 104.
    view, plan = view_and_plan()
    view = replace(view, remaining_s=np.array([1.0, 1.0, 0.0, 1.0]))
    ended = np.array([np.inf, np.inf, 90.0, 104.0])
    summary = RoundReports(reports(), 10.0, 2.0, ended_s=ended)
    outcome = round_outcome(plan, view, summary)
    spent = spent_by_workers(plan, view, summary, outcome.link_s)
    transmit_s, receive_s = radio_seconds(plan.links, outcome.link_s, 4)
    assert compute_seconds(spent, view.alive, plan.active).tolist() == [0.5 + 7.0, 10.0, 0.0, 4.0]
    assert transmit_s.tolist() == [0.5, 1.0, 2.0, 0.0]
    assert receive_s.tolist() == [3.0, 0.0, 0.0, 0.5]


def test_time_spent_by_reports():
    # The workers are those above. Of its exchange of 2.5 s, worker 0 transfers for 2 s: the slower
    # of its two pulls. Worker 2 waits for the round for 10 s, and worker 3 for 6 s.
    view, plan = view_and_plan()
    view = replace(view, remaining_s=np.array([1.0, 1.0, 0.0, 1.0]))
    ended = np.array([np.inf, np.inf, 90.0, 104.0])
    got = round_outcome(plan, view, RoundReports(reports(), 10.0, 2.0, ended_s=ended))
    assert got.compute_s == 0.5 + 7.0 + 10.0 + 4.0
    assert (got.transfer_s, got.wait_others_s) == (2.0, 0.5)
    assert 40.0 - got.compute_s - got.transfer_s - got.wait_others_s == 10.0 + 6.0


def test_a_background_link_is_on_its_way():
    view, _ = view_and_plan()
    plan = Plan(ints([0]), links(ints([1]), ints([0]), background=True, fraction=0.5))
    got = round_outcome(plan, view, RoundReports({1: Report(1, "mixed")}, 1.0))
    assert (got.lost.tolist(), got.link_bytes.tolist()) == ([False], [2000])
    gone = round_outcome(plan, view, RoundReports({}, 1.0))
    assert (gone.lost.tolist(), gone.link_bytes.tolist()) == ([True], [0])


def test_the_trace_contains_the_used_models(tmp_path):
    view, plan = view_and_plan()
    view = replace(view, t=1, version=ints([6, 5, 5, 5]))
    summary = RoundReports(reports(), 10.0, trainings=[(2, 0, 4, 1.5)])
    outcome = round_outcome(plan, view, summary)
    came = trace_outcome(plan, view, summary, outcome, {0, 1, 3})
    assert came["links"]["stale"] == [False, False, False, True]
    assert came["links"]["number"] == [5, -1, -1, 5]
    assert came["links"]["seconds"] == [2.0, 4.0, None, 1.0]
    assert came["orders"]["failed"] == [False, True, False]
    assert came["orders"]["waited_s"] == [1.0, None, 0.0]
    assert came["trained"] == {"node": [2], "round": [0], "steps": [4], "seconds": [1.5]}
    line = {**observed_part(read_blob(write_blob(traced_view(view)))), **came}
    (tmp_path / TRACE).write_text(json.dumps(line, allow_nan=False) + "\n")
    (back,) = read_trace(tmp_path).rounds
    assert same(back.reach, view.reach)
    assert same(back.link_s, view.link_s)


def test_trainings_are_compared_with_the_emulated_devices():
    """Worked example: 4 steps of 0.5 s and 2 of 0.25 s take 2.5 s on the devices, 5 s here."""
    view, plan = view_and_plan()
    world = SimpleNamespace(step_s=np.array([0.1, 0.25, 0.5, 0.1]))
    trainings = [(2, 0, 4, 3.5), (1, 0, 2, 1.5)]
    emulated_s = emulated_seconds(trainings, world, "world")
    got = round_outcome(
        plan, view, RoundReports({}, 1.0, trainings=trainings, emulated_s=emulated_s)
    )
    assert (got.trained_s, got.emulated_s) == (5.0, 2.5)
    record = plain_record(1, 1.0, trained_s=got.trained_s, emulated_s=got.emulated_s)
    assert training_slowdown([record, plain_record(2, 2.0)]) == 2.0


def test_nothing_is_emulated():
    world = SimpleNamespace(step_s=np.ones(4))
    assert emulated_seconds([(0, 0, 1, 1.0)], world, "free") is None
    assert emulated_seconds([], world, "world") is None
    assert emulated_seconds([(0, 0, 1, 1.0)], None, "world") is None


def control_of(**more):
    mechanism = MECHANISMS["dystop"]()
    return mechanism, replace(initial_state(random_fleet(3, 4), mechanism), **more)


def test_the_staleness_of_failed_workers_grows():
    view, plan = view_and_plan()
    mechanism, control = control_of(staleness=ints([4, 3, 2, 1]))
    outcome = round_outcome(plan, view, RoundReports(reports(), 10.0))
    after = advance(mechanism, control, view, plan, outcome)
    assert after.staleness.tolist() == [0, 4, 3, 2]
    assert after.version.tolist() == [1, 0, 0, 0]
    assert after.pulls.get(ints([0, 0, 1, 3]), ints([1, 2, 3, 0])).tolist() == [1, 0, 0, 0]


def test_an_outcome_without_failures_equals_one_without_the_field():
    view, plan = view_and_plan()
    mechanism, control = control_of(staleness=ints([4, 3, 2, 1]))
    everyone = Outcome(
        1.0, np.zeros(2), np.ones(4), ints([1] * 4), np.zeros(4, bool), np.ones(2), 1
    )
    no_failures = replace(everyone, failed=np.zeros(2, bool))
    a, b = (advance(mechanism, control, view, plan, o) for o in (everyone, no_failures))
    assert same(replace(a, last=None), replace(b, last=None))
    assert a.staleness.tolist() == [0, 0, 3, 2]


def test_the_staleness_of_absent_workers_stays_the_same():
    view, plan = view_and_plan()
    mechanism, control = control_of(staleness=ints([4, 3, 2, 1]))
    outcome = round_outcome(plan, view, RoundReports(reports(), 10.0))
    away = np.array([True, False, True, False])
    after = advance(mechanism, control, view, plan, outcome, away)
    assert after.staleness.tolist() == [0, 4, 2, 2]


def test_a_late_report_counts_from_now_on():
    _, control = control_of(staleness=ints([4, 3, 2, 1]), version=ints([1, 1, 1, 1]), wire_bytes=10)
    after = apply_late_report(control, 2, ints([0, 3]), 500)
    assert (after.staleness.tolist(), after.version.tolist()) == ([4, 3, 0, 1], [1, 1, 2, 1])
    assert after.pulls.get(ints([2, 2, 2]), ints([0, 3, 1])).tolist() == [1, 1, 0]
    assert (after.wire_bytes, after.t, control.staleness.tolist()) == (510, 1, [4, 3, 2, 1])
    passive = apply_late_report(control, 2, ints([0]), 1, trains=False)
    assert passive.staleness.tolist() == [4, 3, 2, 1]
