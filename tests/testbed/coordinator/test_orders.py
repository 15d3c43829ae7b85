"""Orders of a plan: every link is pulled once, and every weight has its model."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dystop.control.round import decide, initial_state
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.staleness_weighted import StalenessWeighting, apply
from dystop.plan import Plan, join_links, links, mix_of, no_links
from dystop.sparse import ints
from dystop.testbed.coordinator.orders import RoundLimits, orders_from_plan, pull_times, stage_count
from dystop.testbed.protocol.codec import decode, encode
from dystop.types import Mailbox
from support.engine_fixtures import Script
from support.strategies import random_view


def view_of(n=4, **changes):
    view = random_view(3, n, all_alive=True, shape="complete")
    none = ints([])
    return replace(view, mailbox=Mailbox(none, none, none, none), **changes)


def orders(plan, view, rates=None, mechanism=None):
    steps = np.full(len(plan.active), 7) if plan.steps is None else plan.steps
    rates = np.zeros(len(plan.links)) if rates is None else rates
    pull_s = np.full(view.fleet.nodes, 5.0)
    limits, apart_s = (
        RoundLimits(0.0, 0.0, pull_s, pull_s, rates),
        3.0 * np.arange(1, len(plan.active) + 1),
    )
    return orders_from_plan(plan, view, mechanism or Script(), steps, limits, apart_s, epoch=2)


def test_pulls_of_an_active_worker():
    rows = mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.array([0.5, 0.25, 0.25]))
    plan = Plan(ints([0]), links(ints([0, 0]), ints([2, 1])), (rows,), rate=np.array([0.5]))
    found = orders(plan, view_of(), rates=np.array([10.0, 20.0]))
    assert list(found) == [0]
    order = found[0]
    assert (order.epoch, order.train, order.steps, order.rate) == (2, True, 7, 0.5)
    assert (order.budget_s, order.dt) == (5.0, 3.0)
    (stage,) = order.stages
    assert [(p.node, p.exact, p.into, p.bytes_per_s) for p in stage.pulls] == [
        (2, False, "row", 10.0),
        (1, False, "row", 20.0),
    ]
    assert (stage.row.sources, stage.row.weights) == ((0, 1, 2), (0.5, 0.25, 0.25))
    assert (stage.row.mailed, stage.row.to_self) == ((), False)


def test_pulls_take_as_long_as_the_own_links_and_what_exact_senders_do_before():
    first = mix_of(ints([1, 1]), ints([1, 3]), np.array([0.5, 0.5]))
    second = mix_of(ints([0, 0]), ints([0, 1]), np.array([0.5, 0.5]))
    both = join_links(
        [
            links(ints([1, 2]), ints([3, 3])),
            links(ints([0]), ints([1]), stage=1),
            links(ints([3]), ints([2]), background=True),
        ]
    )
    plan = Plan(ints([0, 2]), both, (first, second))
    busy = np.array([1.0, 50.0, 4.0, 0.0])
    times = pull_times(plan, np.array([5.0, 900.0, 2.0, 70.0]), busy)
    assert times.tolist() == [7.0, 5.0, 900.0, 0.0]  # node 0 waits for the mix of node 1


def test_a_synchronous_pull_waits_for_the_training_of_its_sender_alone():
    pulls = links(ints([0, 1, 2]), ints([1, 0, 0]))
    plan = Plan(ints([0, 1, 2]), pulls, synchronous=True)
    times = pull_times(plan, np.ones(3), np.array([2.0, 8.0, 60.0]))
    assert times.tolist() == [9.0, 3.0, 3.0]


def test_active_without_links_gets_an_order():
    found = orders(Plan(ints([2, 1]), no_links()), view_of())
    assert list(found) == [1, 2]
    assert all(o.train and o.stages == () for o in found.values())


def test_a_push_that_no_row_names_goes_to_the_mailbox_of_a_passive_receiver():
    plan = Plan(ints([0]), links(ints([3]), ints([0]), pushed=True, delta=True, background=True))
    found = orders(plan, view_of())
    assert (found[0].train, found[3].train, found[3].steps) == (True, False, 0)
    (pull,) = found[3].stages[0].pulls
    assert (pull.node, pull.into, pull.delta, pull.background) == (0, "mail", True, True)
    assert pull.exact  # the sender is active and pushes what it has just trained


def test_a_row_uses_mail_only_where_it_has_no_link():
    rows = mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.full(3, 1 / 3))
    plan = Plan(ints([0]), links(ints([0]), ints([1])), (rows,))
    view = view_of()
    box = Mailbox(ints([0, 0]), ints([1, 2]), ints([1, 1]), ints([1, 1]))
    found = orders(plan, replace(view, mailbox=box))
    assert found[0].stages[0].row.mailed == (2,)
    assert [p.node for p in found[0].stages[0].pulls] == [1]


def test_exact_in_a_synchronous_round_only_for_active_senders():
    rows = mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.full(3, 1 / 3))
    pulls = links(ints([0, 0]), ints([1, 2]))
    plan = Plan(ints([0, 1]), pulls, (rows,), synchronous=True)
    exact = {p.node: p.exact for p in orders(plan, view_of())[0].stages[0].pulls}
    assert exact == {1: True, 2: False}


def test_a_later_stage_waits_for_nodes_that_mix_before():
    first = mix_of(ints([2, 2]), ints([1, 2]), np.array([0.5, 0.5]))
    second = mix_of(ints([0, 0, 0]), ints([0, 2, 3]), np.full(3, 1 / 3))
    both = join_links([links(ints([2]), ints([1])), links(ints([0, 0]), ints([2, 3]), stage=1)])
    found = orders(Plan(ints([0]), both, (first, second)), view_of())
    assert not found[2].train
    assert [len(o.stages) for o in found.values()] == [2, 2]
    assert {p.node: p.exact for p in found[0].stages[1].pulls} == {2: True, 3: False}
    assert not found[2].stages[0].pulls[0].exact


def test_a_ring_is_realised_by_direct_pulls():
    ring = ints([0, 1, 2])
    rows = mix_of(np.repeat(ring, 3), np.tile(ring, 3), np.full(9, 1 / 3), collective=True)
    around = links(np.roll(ring, -1), ring, fraction=4 / 3)
    found = orders(Plan(ring, around, (rows,)), view_of(3), rates=np.array([5.0, 6.0, 7.0]))
    for i in range(3):
        pulls = found[i].stages[0].pulls
        assert sorted(p.node for p in pulls) == sorted({0, 1, 2} - {i})
        assert len({p.bytes_per_s for p in pulls}) == 1


def test_masks_are_part_of_rows_and_pulls():
    rows = mix_of(ints([0, 0]), ints([0, 1]), np.array([0.5, 0.5]), kind="masked", mask=(9, 0.25))
    found = orders(Plan(ints([0]), links(ints([0]), ints([1])), (rows,)), view_of())
    stage = found[0].stages[0]
    assert (stage.row.kind, stage.row.mask, stage.pulls[0].mask) == ("masked", (9, 0.25), (9, 0.25))


def plans_of(name, count=14):
    kind = MECHANISMS[name]
    for seed in range(count):
        n = (3, 5, 6, 9)[seed % 4]
        view = random_view(seed, n, server=kind().capabilities().server)
        view = replace(view, fleet=replace(view.fleet, server=kind().capabilities().server))
        mechanism = kind()
        control = initial_state(view.fleet, mechanism)
        weighting = StalenessWeighting(("none", "polynomial", "discard")[seed % 3])
        plan, _ = decide(mechanism, control, view)
        yield apply(weighting, plan, view), view, mechanism


@pytest.mark.parametrize("name", MECHANISMS)
def test_orders_of_every_mechanism(name):
    for plan, view, mechanism in plans_of(name):
        found = orders(plan, view, mechanism=mechanism)
        assert {i for i, o in found.items() if o.train} == set(plan.active.tolist())
        _check_links(plan, found)
        for stage, mix in enumerate(plan.mixes):
            _check_rows(plan, view, mix, stage, found)
        for order in found.values():
            assert len(order.stages) == stage_count(plan)
            assert decode(encode(order), "worker") == order


def _check_links(plan, found):
    want = Counter(
        zip(
            plan.links.dst.tolist(), plan.links.src.tolist(), plan.links.stage.tolist(), strict=True
        )
    )
    got = Counter(
        (i, p.node, k) for i, o in found.items() for k, s in enumerate(o.stages) for p in s.pulls
    )
    ring = {k for k, mix in enumerate(plan.mixes) if mix.collective}
    extra = got - want
    assert not want - got
    assert all(k in ring for _, _, k in extra)
    assert max(got.values(), default=1) == 1


def _check_rows(plan, view, mix, stage, found):
    for k, node in enumerate(mix.receiver.tolist()):
        row = found[node].stages[stage].row
        part = slice(mix.indptr[k], mix.indptr[k + 1])
        assert row.sources == tuple(mix.source[part].tolist())
        assert row.weights == tuple(mix.weight[part].tolist())
        pulled = {p.node for p in found[node].stages[stage].pulls if p.into == "row"}
        mail = set(view.mailbox.of(node).tolist())
        assert set(row.mailed) <= mail - pulled
        assert set(row.sources) <= pulled | set(row.mailed) | {node}
