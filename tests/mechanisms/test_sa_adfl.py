"""SA-ADFL: the active worker, the receivers of its push, and its mailbox."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop
from dystop.mechanisms import SAADFL
from dystop.mechanisms.shared.push import slowest_push_s
from dystop.sparse import graph_of, ints
from dystop.types import Budgets, no_mail
from support import paper_reference
from support.engine_fixtures import components_for, run_to_end, weights
from support.strategies import random_view, same
from support.unstable_world import ENGINES, check_unstable_run

SEEDS = range(40)


def four_workers(link_s):
    """The four workers of the oracle; their cost is H = (1, 2, 3, 4) whatever the link time."""
    view = random_view(0, 4, shape="complete" if link_s else "empty", all_alive=True)
    return replace(
        view,
        link_s=np.full(view.reach.edges, link_s),
        remaining_s=np.array([1.0, 2, 3, 4]) - link_s,
        queue=np.array([0.0, 0, 2, 6]),
        staleness=ints([0, 1, 3, 5]),
    )


def test_the_slowest_push_is_remembered_only_while_nothing_can_change():
    view = random_view(0, 6, shape="complete", all_alive=True)
    graph, first = view.reach, view.link_s.copy()
    src = graph.src.copy()
    src.flags.writeable = first.flags.writeable = False
    graph = replace(graph, src=src)
    answer = slowest_push_s(graph, first, 6)
    assert answer.base is slowest_push_s(graph, first, 6).base
    doubled = 2 * first
    assert slowest_push_s(graph, doubled, 6).tolist() == (2 * answer).tolist()
    doubled *= 2  # it may be written to, so that its answer was not kept
    assert slowest_push_s(graph, doubled, 6).tolist() == (4 * answer).tolist()


def cost(view):
    """H_i: training still to run plus the slowest push, the slow way."""
    slowest = [
        max(view.link_s[view.reach.src == i], default=0.0) for i in range(view.fleet.workers)
    ]
    return (view.remaining_s + slowest).tolist()


@pytest.mark.parametrize("link_s", [0.0, 0.5])
@pytest.mark.parametrize(("V", "chosen"), [(10.0, 3), (20.0, 0)])
def test_oracle(V, chosen, link_s):
    view = four_workers(link_s)
    scores = V * np.array(cost(view)) - view.queue * (view.staleness + 1)
    assert scores.tolist() == ([10, 20, 22, 4] if V == 10 else [20, 40, 52, 44])
    plan, _ = SAADFL(V=V).plan({}, view)
    assert plan.active.tolist() == [chosen]


@pytest.mark.parametrize("seed", SEEDS)
def test_choice_is_dystops_objective_over_singletons(seed):
    view = random_view(seed, 8)
    plan, _ = SAADFL().plan({}, view)
    columns = view.staleness.tolist(), view.queue.tolist(), cost(view)
    alive = np.flatnonzero(view.alive).tolist()
    assert plan.active.tolist() == [paper_reference.best_single(*columns, 10.0, 2.0, alive)]


@pytest.mark.parametrize("seed", SEEDS)
def test_extreme_trade_offs(seed):
    view = random_view(seed, 8)
    alive = np.flatnonzero(view.alive)
    hasty, _ = SAADFL(V=1e12).plan({}, view)
    fair, _ = SAADFL(V=0.0).plan({}, view)
    assert cost(view)[hasty.active[0]] == min(np.array(cost(view))[alive])
    owed = view.queue * (view.staleness + 1)
    assert fair.active[0] == alive[np.argmax(owed[alive])]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_worker_tells_everyone_in_reach_whatever_the_budget(seed):
    view = random_view(seed, 9)
    plan, _ = SAADFL().plan({}, view)
    i = plan.active[0]
    assert len(plan.active) == 1
    assert (plan.links.src == i).all()
    assert plan.links.dst.tolist() == view.reach.dst[view.reach.src == i].tolist()
    assert plan.links.pushed.all()
    frugal, _ = SAADFL().plan({}, replace(view, budget_of=Budgets(np.zeros(9))))
    assert same(plan, frugal)


@pytest.mark.parametrize("seed", SEEDS)
def test_mail_is_averaged_by_data_size(seed):
    view = random_view(seed, 9)
    plan, _ = SAADFL().plan({}, view)
    i, rows = int(plan.active[0]), plan.mixes[0]
    senders = [i, *view.mailbox.of(i).tolist()]
    size = view.fleet.data_size
    assert rows.receiver.tolist() == [i]
    assert rows.source.tolist() == sorted(senders)
    np.testing.assert_allclose(rows.weight, size[sorted(senders)] / size[senders].sum())


def test_cold_start_keeps_the_own_model():
    plan, _ = SAADFL().plan({}, replace(random_view(3, 5), mailbox=no_mail()))
    assert plan.mixes[0].source.tolist() == plan.active.tolist()
    assert plan.mixes[0].weight.tolist() == [1.0]


def test_a_lonely_worker_trains_on():
    view = random_view(0, 1, shape="empty")
    plan, _ = SAADFL().plan({}, view)
    assert plan.active.tolist() == [0]
    assert len(plan.links) == 0


def test_cost_counts_what_leaves_a_worker():
    """H counts what leaves a worker; a slow link into it does not matter."""
    view = random_view(0, 2, shape="complete", all_alive=True)
    view = replace(view, remaining_s=np.zeros(2), queue=np.zeros(2))
    into_0 = graph_of(2, ints([0, 1]), ints([1, 0]))
    view = replace(view, reach=into_0, link_s=np.array([9.0, 1.0]))  # 1 -> 0 is slow
    plan, _ = SAADFL().plan({}, view)
    assert plan.active.tolist() == [0]


@pytest.mark.parametrize(("sends", "sent"), [("trained", 2.0), ("mixed", 1.5)])
def test_what_is_pushed_in_the_engine(sends, sent):
    """Two workers in turn: 0 pushes 1; 1 mixes 2 and 1 and pushes one of 2 and 1.5."""
    components = components_for(SAADFL(sends=sends), 2, stop=Stop(rounds=3), steps=ints([3, 4]))
    records, state = run_to_end(components)
    assert [r.get("active_ids") for r in records] == [[0], [1], [0]]
    assert weights(state) == [(2.0 + sent) / 2 + 1.0, 1.5 + 2.0]


@pytest.mark.parametrize("mail", ["new", "latest"])
def test_mail_is_read_once_or_until_newer_comes(mail):
    """Four workers of unequal speed, so that some wake twice before others push again."""
    steps = ints([2, 3, 5, 9])
    records, state = run_to_end(
        components_for(SAADFL(mail=mail), 4, stop=Stop(rounds=25), steps=steps)
    )
    model, box = [1.0, 2.0, 3.0, 4.0], [{} for _ in range(4)]
    for record in records:
        (i,) = record.get("active_ids")
        trained, read = model[i], box[i].values()
        model[i] = (trained + sum(read)) / (1 + len(read)) + i + 1
        box[i] = box[i] if mail == "latest" else {}
        for j in {0, 1, 2, 3} - {i}:
            box[j][i] = trained
    np.testing.assert_allclose(weights(state), model, rtol=1e-5)
    assert len(state.models.snapshots) <= 5  # one per sender, and the one that was just replaced


def test_staleness_of_a_receiver_is_untouched_and_queues_grow():
    records, state = run_to_end(components_for(SAADFL(), 5, stop=Stop(rounds=30)))
    assert all(r.active == 1 and r.links == 4 for r in records)
    assert sorted(state.control.staleness.tolist()) == [0, 1, 2, 3, 4]  # everyone in turn
    assert records[-1].queue_mean > 0


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_survives_everything_at_once(engine):
    records, _ = check_unstable_run(SAADFL(), engine)
    assert all(r.active == 1 for r in records)
    assert sum(r.links for r in records) > 0


def test_a_push_in_the_background_delays_nobody():
    """The sender trains at once: a round lasts as long as its training, and mail comes later."""
    view = four_workers(0.5)
    plan, _ = SAADFL(V=10.0, background=True).plan({}, view)
    assert plan.links.background.all()
    assert plan.links.pushed.all()
    scores = 10.0 * view.remaining_s - view.queue * (view.staleness + 1)
    assert plan.active.tolist() == [int(np.argmin(scores))]
    blocking, free = (
        run_to_end(components_for(SAADFL(background=on), 4, stop=Stop(rounds=12)))[0]
        for on in (False, True)
    )
    assert free[-1].clock_s < blocking[-1].clock_s
    assert [r.links for r in free] == [3] * 12
