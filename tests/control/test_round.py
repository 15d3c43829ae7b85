"""One round from the coordinator's side (alg:dystop): build the view, decide, advance, record."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from dystop.control.round import (
    advance,
    build_view,
    decide,
    initial_state,
    record_of,
    with_score,
)
from dystop.errors import PlanError
from dystop.plan import Plan, join_links, links, no_links
from dystop.sparse import ints
from dystop.types import Capabilities, Mechanism, Observation, Outcome, Score
from support.strategies import random_fleet, random_view, same


@dataclass(frozen=True)
class Bounded(Mechanism):
    """Wakes whom it is told to; counts its rounds in memory."""

    name: ClassVar[str] = "bounded"
    who: int = 0
    bound: float | None = 1.0

    def capabilities(self):
        return Capabilities(mode="async", queue_bound=self.bound)

    def init(self, fleet):
        return {"rounds": 0}

    def plan(self, memory, view):
        return Plan(ints([self.who]), no_links()), {"rounds": memory["rounds"] + 1}


def control_of(mechanism, n=4, **more):
    return replace(initial_state(random_fleet(3, n), mechanism), **more)


def view_of(control, n=4):
    return replace(
        random_view(3, n, all_alive=True, shape="complete"),
        t=control.t,
        now_s=control.clock_s,
        staleness=control.staleness,
        queue=control.queue,
    )


def settle(mechanism, control, view, plan, outcome, frozen=None):
    after = advance(mechanism, control, view, plan, outcome, frozen)
    return record_of(control, after, view, plan, outcome), after


def outcome_of(plan, lost=None):
    size = len(plan.links)
    return Outcome(
        duration_s=2.5,
        comm_s=np.zeros(len(plan.active)),
        link_s=np.ones(size),
        link_bytes=np.full(size, 100),
        lost=np.zeros(size, bool) if lost is None else np.array(lost),
        loss=np.full(len(plan.active), 0.5),
        samples=64,
        idle_s=1.0,
        active=plan.active,
    )


def test_control_open_empty():
    control = control_of(Bounded())
    assert (control.t, control.clock_s, control.wire_bytes, control.last) == (1, 0.0, 0, None)
    assert not control.staleness.any()
    assert not control.queue.any()
    assert control.memory == {"rounds": 0}


def test_look_joins_control_and_observation():
    view = random_view(5, 6)
    names = Observation.__dataclass_fields__
    seen = Observation(**{name: getattr(view, name) for name in names})
    control = replace(
        initial_state(view.fleet, Bounded()),
        t=view.t,
        clock_s=view.now_s,
        staleness=view.staleness,
        queue=view.queue,
        version=view.version,
        pulls=view.pulls,
        last=view.last,
    )
    assert same(build_view(view.fleet, control, seen), view)


def test_decide_keeps_the_new_memory_and_checks_the_plan():
    control = control_of(Bounded())
    plan, after = decide(Bounded(), control, view_of(control))
    assert plan.active.tolist() == [0]
    assert (control.memory, after.memory) == ({"rounds": 0}, {"rounds": 1})
    with pytest.raises(PlanError, match=r"0\.\."):
        decide(Bounded(who=9), control, view_of(control))


def test_settle_advances_clock_staleness_queues_and_versions():
    start = {"staleness": ints([4, 0, 2, 1]), "queue": np.array([0.0, 0, 3, 5]), "clock_s": 10.0}
    control = control_of(Bounded(), t=3, **start)
    view = replace(view_of(control), alive=np.array([True, True, True, False]))
    plan = Plan(ints([0]), no_links())
    record, after = settle(Bounded(), control, view, plan, outcome_of(plan))
    assert (after.t, after.clock_s, after.samples) == (4, 12.5, 64)
    assert after.staleness.tolist() == [0, 1, 3, 2]
    assert after.queue.tolist() == [3.0, 0.0, 4.0, 5.0]  # tau before the reset; 3 is away
    assert after.version.tolist() == [1, 0, 0, 0]
    assert (record.round, record.clock_s, record.alive, record.active) == (3, 12.5, 3, 1)
    assert (record.staleness_mean, record.staleness_max) == (2.0, 4)
    assert record.staleness_histogram == [1, 0, 1, 0, 1]
    assert record.loss == 0.5
    assert record.accuracy is None


def test_queues_stay_empty_without_a_bound():
    free = Bounded(bound=None)
    control = control_of(free, staleness=ints([9, 9, 9, 9]))
    plan = Plan(ints([0]), no_links())
    _, after = settle(free, control, view_of(control), plan, outcome_of(plan))
    assert not after.queue.any()


def test_settle_counts_pulls_that_arrived_and_bytes_of_all():
    control = control_of(Bounded())
    pulls, push = links(ints([0, 0]), ints([1, 2])), links(ints([3]), ints([0]), pushed=True)
    plan = Plan(ints([0]), join_links([pulls, push]))
    outcome = outcome_of(plan, lost=[False, True, False])
    record, after = settle(Bounded(), control, view_of(control), plan, outcome)
    assert after.pulls.get(ints([0, 0, 3]), ints([1, 2, 0])).tolist() == [1, 0, 0]
    assert (record.links, record.lost, record.wire_bytes) == (2, 1, 300)
    assert record.endpoint_bytes_total == 2 * record.wire_bytes_total == 600
    again, twice = settle(Bounded(), after, view_of(after), plan, outcome)
    assert twice.pulls.get(ints([0]), ints([1])).tolist() == [2]
    assert again.wire_bytes_total == 600


def test_scores_and_a_round_without_training():
    control = control_of(Bounded())
    plan = Plan(ints([0]), no_links(), notes={"phase": 2.0})
    outcome = replace(outcome_of(plan), loss=np.zeros(0))
    score = Score(0.8, 0.1, 0.9, 0.4, 0.3)
    record, _ = settle(Bounded(), control, view_of(control), plan, outcome)
    assert record.accuracy is None
    record = with_score(record, score)
    assert record.loss is None
    assert (record.accuracy, record.get("accuracy_std"), record.get("accuracy_global")) == (
        0.8,
        0.1,
        0.9,
    )
    assert (record.get("test_loss"), record.get("test_loss_global")) == (0.4, 0.3)
    assert record.notes == {"phase": 2.0}
    assert record.epochs_total == 64 / samples_of(control)


def samples_of(control):
    return int(random_fleet(3, len(control.staleness)).data_size.sum())


def test_a_score_that_is_not_finite_is_left_out():
    control = control_of(Bounded())
    plan = Plan(ints([0]), no_links())
    record, _ = settle(Bounded(), control, view_of(control), plan, outcome_of(plan))
    record = with_score(record, Score(0.1, 0.0, 0.1, math.nan, math.inf, diverged=4))
    assert (record.get("test_loss"), record.get("test_loss_global"), record.get("diverged")) == (
        None,
        None,
        4,
    )


def test_the_staleness_of_a_frozen_worker_does_not_grow():
    control = control_of(Bounded(), staleness=ints([1, 2, 3, 4]))
    plan, frozen = Plan(ints([0]), no_links()), np.array([True, True, False, False])
    outcome = outcome_of(plan)
    _, after = settle(Bounded(), control, view_of(control), plan, outcome, frozen)
    assert after.staleness.tolist() == [0, 2, 4, 5]  # 0 is frozen too, but was active


def test_settle_leaves_the_old_state_alone():
    control = control_of(Bounded(), staleness=ints([1, 2, 3, 4]))
    kept = (control.staleness.copy(), control.queue.copy(), control.version.copy())
    plan = Plan(ints([2]), links(ints([2]), ints([1])))
    settle(Bounded(), control, view_of(control), plan, outcome_of(plan))
    assert same(kept, (control.staleness, control.queue, control.version))
    assert len(control.pulls.keys) == 0


def test_a_worker_that_failed_does_not_count_as_active():
    control = control_of(Bounded(), staleness=np.array([2, 0, 1, 5]))
    view = view_of(control)
    plan, control = decide(Bounded(), control, view)
    failed = replace(outcome_of(plan), failed=np.array([True]))
    _, after = settle(Bounded(), control, view, plan, failed)
    assert after.staleness.tolist() == [3, 1, 2, 6]
    assert after.version.tolist() == control.version.tolist()
