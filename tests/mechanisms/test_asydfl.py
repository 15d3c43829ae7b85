"""AsyDFL: selection of receivers, its schedule, its rows, and replay."""

import functools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dystop.control.priority import emd, label_shares
from dystop.control.stopping import Stop
from dystop.control.topology import bandwidth_use
from dystop.mechanisms import SAADFL, AsyDFL, AsyNG
from dystop.mechanisms.shared.push import (
    choose_receivers,
    finished_together,
    push_cap,
    share_of_sender_max,
)
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.types import Budgets, Outcome, no_mail
from support.checked_plans import one_active, plan_of
from support.engine_fixtures import components_for, run_to_end, weights
from support.strategies import random_view, same
from support.unstable_world import ENGINES, check_unstable_run

SEEDS = range(30)
ONLY_QUALITY = AsyDFL(lam_start=1.0, lam_end=1.0, fanout=3)
ONLY_COST = AsyDFL(lam_start=0.0, lam_end=0.0, fanout=3)


@pytest.mark.parametrize("seed", SEEDS)
def test_few_links_and_all_leave_the_first_to_finish(seed):
    view, first = one_active(seed)
    plan = plan_of(AsyDFL(), view)
    assert plan.active.tolist() == [first]
    assert (plan.links.src == first).all()
    assert len(plan.links) <= push_cap(None, 9) == 4
    assert plan.links.pushed.all()
    used = bandwidth_use(plan.links.dst, plan.links.src, 9)
    assert (used <= view.budget).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mechanism", [ONLY_QUALITY, ONLY_COST], ids=["quality", "cost"])
def test_ends_of_the_trade_off(mechanism, seed):
    view, first = one_active(seed, budget=np.inf)
    mine = np.flatnonzero(view.reach.src == first)
    dst = view.reach.dst[mine]
    gap = emd(label_shares(view.fleet.label_counts), dst, np.full(len(dst), first))
    score = -gap if mechanism is ONLY_QUALITY else view.link_s[mine]
    best = dst[np.lexsort((dst, score))][:3]
    assert plan_of(mechanism, view).links.dst.tolist() == sorted(best.tolist())


@pytest.mark.parametrize(("progress", "lam"), [(0.0, 0.7), (0.5, 0.5), (1.0, 0.3)])
def test_schedule_of_lam(progress, lam):
    assert AsyDFL().lam(progress) == pytest.approx(lam)


def test_schedule_follows_the_run():
    view = random_view(0, 5)
    first = plan_of(AsyDFL(), replace(view, t=1))
    last = plan_of(AsyDFL(), replace(view, t=view.fleet.horizon))
    assert first.notes["lam"] == 0.7
    assert last.notes["lam"] == pytest.approx(0.3, abs=0.4 / view.fleet.horizon + 1e-12)
    timed = replace(view, fleet=replace(view.fleet, horizon_s=view.now_s))
    assert plan_of(AsyDFL(), timed).notes["lam"] == pytest.approx(0.3)


@pytest.mark.parametrize("seed", SEEDS)
def test_telling_everyone_by_the_rule_of_sa_adfl_is_sa_adfl(seed):
    view = random_view(seed, 9, budget=np.inf)
    wanted, _ = SAADFL().plan({}, view)
    view = replace(view, remaining_s=np.where(np.arange(9) == wanted.active[0], 0.0, 1.0))
    got = plan_of(AsyDFL(fanout=9), view)
    assert same(replace(got, notes={}), wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_by_data_size_and_rows_of_updates(seed):
    view, first = one_active(seed)
    senders = view.mailbox.of(first)
    size = view.fleet.data_size
    model, delta = plan_of(AsyDFL(), view), plan_of(AsyDFL(payload="delta"), view)
    assert model.mixes[0].weight.sum() == pytest.approx(1.0)
    rows = delta.mixes[0]
    own = rows.source == first
    total = size[first] + size[senders].sum()
    assert rows.kind == "delta"
    assert delta.links.delta.all()
    assert rows.weight[own].tolist() == [1.0]
    np.testing.assert_allclose(rows.weight[~own], size[rows.source[~own]] / total)
    np.testing.assert_allclose(model.mixes[0].weight[~own], rows.weight[~own])


def test_declarations_follow_the_knobs():
    assert not AsyDFL().capabilities().deltas
    assert AsyDFL(payload="delta").capabilities().deltas
    assert AsyDFL().capabilities().needs == frozenset()
    assert AsyDFL(quality="distance").capabilities().needs == {"distance"}


def test_those_who_finish_together_wake_together():
    view = random_view(1, 6, all_alive=True)
    view = replace(view, remaining_s=np.array([2.0, 1.0, 3.0, 1.0, 1.0 + 1e-10, 1.1]))
    assert plan_of(AsyDFL(), view).active.tolist() == [1, 3, 4]
    assert finished_together(ints([]), np.zeros(2)).tolist() == []


@pytest.mark.parametrize("mechanism", [AsyDFL(wakes="one"), AsyNG(wakes="one")], ids=str)
def test_with_one_wake_up_the_most_stale_of_those_who_finished_is_active(mechanism):
    view = random_view(3, 6)
    view = replace(
        view,
        alive=np.array([True, True, True, False, True, True]),
        remaining_s=np.array([0.0, 0.0, 3.0, 0.0, 0.0, 1.0]),
        staleness=ints([1, 4, 9, 9, 4, 9]),
    )
    assert plan_of(mechanism, view).active.tolist() == [1]  # of 1 and 4 the lower id
    both = replace(mechanism, wakes="all")
    assert plan_of(both, view).active.tolist() == [0, 1, 4]


def test_without_bandwidth_nobody_is_told():
    view, _ = one_active(3, shape="complete", budget=0.0)
    assert len(plan_of(AsyDFL(fanout=9), view).links) == 0
    view, first = one_active(3, shape="complete", all_alive=True, budget=1.0)
    plan = plan_of(AsyDFL(fanout=9), view)
    assert len(plan.links) == 1  # the sender has bandwidth for one
    budget = np.where(np.arange(9) == first, np.inf, 0.0)
    assert len(plan_of(AsyDFL(fanout=9), replace(view, budget_of=Budgets(budget))).links) == 0


def test_choice_within_budgets_by_hand():
    """Two senders share receiver 3, which can take one model; the first in turn gets it."""
    pair = ints([3, 2, 3, 4]), ints([0, 0, 1, 1])
    priority = np.array([0.9, 0.1, 0.9, 0.2])
    view = SimpleNamespace(budget=np.array([5.0, 5, 5, 1, 5]))
    dst, src = choose_receivers(ints([0, 1]), pair, priority, view, 1)
    assert list(zip(dst.tolist(), src.tolist(), strict=True)) == [(3, 0), (4, 1)]


def test_a_maximum_of_zero_is_no_reason_to_divide():
    assert share_of_sender_max(np.zeros(2), ints([0, 1])).tolist() == [0.0, 0.0]
    assert share_of_sender_max(np.zeros(0), ints([])).tolist() == []


def test_measured_distances_replace_label_distances():
    """Everyone holds the same labels, so that only the measured distances tell receivers apart."""
    mechanism = AsyDFL(quality="distance", lam_start=1.0, lam_end=1.0, fanout=1)
    view, first = one_active(0, 4, shape="complete", all_alive=True, budget=np.inf)
    counts = np.full((4, 2), 4)
    others = ints([j for j in range(4) if j != first])
    last = Outcome(
        duration_s=1.0,
        comm_s=np.zeros(1),
        link_s=np.ones(3),
        link_bytes=ints([4, 4, 4]),
        loss=np.zeros(1),
        samples=1,
        active=ints([first]),
        dst=others,
        src=np.full(3, first),
        lost=np.zeros(3, bool),
        distance=np.array([1.0, 3.0, 2.0]),
    )
    fleet = replace(view.fleet, data_size=counts.sum(axis=1), label_counts=counts)
    view = replace(view, fleet=fleet, last=last)
    plan, memory = mechanism.plan(mechanism.init(fleet), view)
    assert plan.links.dst.tolist() == [others[1]]
    gone = replace(last, lost=np.array([False, True, False]), distance=np.array([1.0, 9.0, 5.0]))
    plan, again = mechanism.plan(memory, replace(view, last=gone))
    assert plan.links.dst.tolist() == [others[2]]  # 5 beats the 3 that is still remembered
    assert again["distance"].tolist() == [1.0, 3.0, 5.0]


def test_distances_reach_it_through_the_engine():
    components = components_for(
        AsyDFL(quality="distance"), 4, stop=Stop(rounds=6), steps=ints([3, 4, 5, 6])
    )
    _, state = run_to_end(components)
    assert len(state.control.memory["pair"]) > 0
    assert state.control.memory["distance"].max() > 0


@dataclass(frozen=True)
class Notebook(AsyDFL):
    """AsyDFL that writes down what it was asked and what it said."""

    pages: list = field(default_factory=list, compare=False)

    def plan(self, memory, view):
        plan, after = super().plan(memory, view)
        self.pages.append((memory, view, plan))
        return plan, after


@functools.cache
def replayed():
    """Workers of different speed, everybody told, models published on completion, no jitter."""
    out = []
    for _ in range(2):
        mechanism = Notebook(fanout=5)
        engine = EngineParams(publish="on_completion")
        steps = ints([3, 4, 5, 6, 7])
        components = components_for(mechanism, 5, stop=Stop(rounds=40), engine=engine, steps=steps)
        records, state = run_to_end(components)
        out.append((mechanism.pages, records, state))
    return out


def test_replay_gives_the_same_plans_records_and_models():
    (pages, records, state), (again, records_again, state_again) = replayed()
    assert records == records_again
    assert all(same(a[2], b[2]) for a, b in zip(pages, again, strict=True))
    assert state.models.latest.equal(state_again.models.latest)


def test_plans_depend_on_memory_and_view_alone():
    """Asked again, in another order and by another object, it says the same."""
    pages, records, _ = replayed()[0]
    for memory, view, plan in reversed(pages):
        assert same(AsyDFL(fanout=5).plan(memory, view)[0], plan)
    assert all(r.links == 4 * r.active for r in records)
    assert {i for r in records for i in r.get("active_ids")} == set(range(5))


@pytest.mark.parametrize("background", [False, True])
def test_a_push_waits_for_the_next_activation(background):
    """Workers 0 and 1 tie in both rounds: each mixes what the other sent in the round before."""
    components = components_for(AsyDFL(background=background), 2, stop=Stop(rounds=1))
    _, state = run_to_end(components)
    assert weights(state) == [2.0, 4.0]  # the pushes of round 1 are still on their way
    _, state = run_to_end(replace(components, stop=Stop(rounds=2)))
    if not background:
        assert weights(state) == [(2 + 2) / 2 + 1, (4 + 1) / 2 + 2]
    _, state = run_to_end(replace(components, stop=Stop(rounds=3)))
    if not background:
        assert weights(state) == [(3 + 4) / 2 + 1, (4.5 + 2) / 2 + 2]


def test_a_push_in_the_background_costs_the_sender_no_time():
    blocking, _ = run_to_end(components_for(AsyDFL(), 3, stop=Stop(rounds=1)))
    free, state = run_to_end(components_for(AsyDFL(background=True), 3, stop=Stop(rounds=1)))
    assert free[0].duration_s == 1.0 < blocking[0].duration_s
    assert len(state.progress.in_flight) == free[0].links == 6
    assert np.isnan(state.progress.in_flight.messages().weight).all()  # they will wait in mailboxes


def test_two_islands_and_silence():
    view = random_view(2, 9, shape="islands", budget=np.inf, all_alive=True)
    view = replace(view, remaining_s=np.zeros(9), mailbox=no_mail())
    plan = plan_of(AsyDFL(fanout=9), view)
    assert ((plan.links.dst < 4) == (plan.links.src < 4)).all()
    assert len(plan.links) == 4 * 3 + 5 * 4
    assert len(plan_of(AsyDFL(fanout=0), view).links) == 0


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize(
    "mechanism",
    [AsyDFL(), AsyDFL(payload="delta"), AsyDFL(quality="distance", background=True)],
    ids=["model", "delta", "distance"],
)
def test_survives_everything_at_once(mechanism, engine):
    records, _ = check_unstable_run(mechanism, engine)
    assert sum(r.links for r in records) > 0
