"""Exchange times and the three timing laws: worked examples and plain references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.laws import (
    LAWS,
    exchange_s,
    expected_exchange_s,
    idle_s,
    remaining_compute_s,
    round_duration_s,
    timetable,
)
from dystop.plan import Links, Plan, join_links, links, mix_of, no_links
from dystop.sparse import graph_of, ints
from support import paper_reference
from support.strategies import pairs, small

seconds = st.integers(0, 9)


@st.composite
def rounds(draw, *, fancy=False, synchronous=False):
    """(plan, link_s, remaining_s, training_s) in whole seconds; links point at active workers."""
    n = draw(st.integers(1, 6))
    active = draw(st.lists(st.sampled_from(range(n)), unique=True, min_size=1))
    chosen = [p for p in draw(pairs(n)) if p[0] in active]
    size = len(chosen)
    flags = st.lists(st.booleans(), min_size=size, max_size=size)
    none = [False] * size
    stage = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)) if fancy else none
    table = Links(
        ints([i for i, _ in chosen]),
        ints([j for _, j in chosen]),
        ints(stage),
        np.ones(size),
        np.array(none, bool),
        np.array(draw(flags) if fancy else none, bool),
        np.array(draw(flags) if fancy else none, bool),
    )
    plan = Plan(ints(active), table, synchronous=synchronous)
    column = st.lists(seconds, min_size=n, max_size=n)
    times = draw(st.lists(seconds, min_size=size, max_size=size))
    training = draw(column)[: len(active)]
    return plan, np.array(times, float), np.array(draw(column), float), np.array(training, float)


def rows(plan):
    x = plan.links
    names = ("dst", "src", "stage", "background", "pushed")
    return [{name: getattr(x, name)[k].item() for name in names} for k in range(len(x))]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(rounds(fancy=True))
def test_exchange_equals_its_twin_with_stages_pushes_and_background(case):
    plan, link_s, remaining, _ = case
    expected = paper_reference.exchange(rows(plan), link_s.tolist(), len(remaining))
    assert exchange_s(plan, link_s, len(remaining)).tolist() == expected


@settings(derandomize=True, deadline=None, max_examples=200)
@given(rounds())
def test_paper_law_is_eq_duration(case):
    plan, link_s, remaining, training = case
    table = timetable(LAWS["paper"](), plan, link_s, remaining, training)
    chosen = zip(plan.links.dst.tolist(), plan.links.src.tolist(), strict=True)
    by_link = dict(zip(chosen, link_s.tolist(), strict=True))
    by_hand = paper_reference.duration(plan.active.tolist(), remaining.tolist(), by_link)
    assert table.duration_s == by_hand
    assert (table.begin_s == by_hand).all()
    assert (table.link_begin_s == remaining[plan.links.dst]).all()
    assert (table.link_end_s == table.link_begin_s + link_s).all()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(rounds(fancy=True), st.booleans())
def test_overlap_never_lasts_longer_than_the_paper_law(case, synchronous):
    plan, link_s, remaining, training = case
    plan = Plan(plan.active, plan.links, synchronous=synchronous)
    slow = timetable(LAWS["paper"](), plan, link_s, remaining, training)
    fast = timetable(LAWS["overlap"](), plan, link_s, remaining, training)
    assert fast.duration_s <= slow.duration_s
    assert fast.duration_s == remaining[plan.active].max()
    assert (fast.begin_s >= remaining[plan.active]).all()
    assert (fast.comm_s == fast.begin_s - remaining[plan.active]).all()
    assert (fast.comm_s >= 0).all()
    assert (fast.link_end_s == fast.link_begin_s + link_s).all()


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rounds())
def test_overlapping_pulls_are_each_workers_own_affair(case):
    """Pulls of one stage: a worker starts after its own training and slowest pull, eq:costtime."""
    plan, link_s, remaining, training = case
    fast = timetable(LAWS["overlap"](), plan, link_s, remaining, training)
    own = remaining + exchange_s(plan, link_s, len(remaining))
    assert (fast.begin_s == own[plan.active]).all()
    slow = timetable(LAWS["paper"](), plan, link_s, remaining, training)
    assert slow.duration_s == max(fast.begin_s)
    assert (fast.comm_s == slow.comm_s).all()


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rounds(synchronous=True))
def test_a_synchronous_transfer_waits_for_both_ends(case):
    plan, link_s, remaining, training = case
    table = timetable(LAWS["overlap"](), plan, link_s, remaining, training)
    takes_part = np.isin(np.arange(len(remaining)), plan.active)
    ready = np.where(takes_part, remaining, 0.0)
    partner = np.maximum(ready[plan.links.dst], ready[plan.links.src])
    assert (table.link_begin_s == partner).all()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(rounds(fancy=True), st.booleans(), st.booleans())
def test_the_law_of_the_testbed_is_what_orders_take(case, synchronous, join):
    plan, link_s, remaining, training = case
    plan = Plan(plan.active, plan.links, synchronous=synchronous, join=join)
    table = timetable(LAWS["testbed"](), plan, link_s, remaining, training)
    closes, begins = paper_reference.testbed_round(
        plan.active.tolist(), rows(plan), link_s.tolist(), remaining.tolist(), synchronous
    )
    assert table.begin_s.tolist() == begins
    assert table.duration_s == max([closes, *(table.begin_s + training) * join])
    assert (table.comm_s == table.begin_s - remaining[plan.active]).all()
    assert (table.link_end_s == table.link_begin_s + link_s).all()


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rounds())
def test_pulls_on_the_testbed_last_as_under_paper_and_begin_as_under_overlap(case):
    tables = {law: timetable(LAWS[law](), *case) for law in LAWS}
    assert tables["testbed"].duration_s == tables["paper"].duration_s
    assert (tables["testbed"].begin_s == tables["overlap"].begin_s).all()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(rounds(), st.sampled_from(["paper", "overlap", "testbed"]))
def test_join_adds_the_new_training(case, law):
    plan, link_s, remaining, training = case
    joined = Plan(plan.active, plan.links, join=True)
    before = timetable(LAWS[law](), plan, link_s, remaining, training)
    after = timetable(LAWS[law](), joined, link_s, remaining, training)
    assert after.duration_s == max(before.begin_s + training)
    assert (after.begin_s == before.begin_s).all()


def test_partners_by_hand():
    both = links(ints([0, 1]), ints([1, 0]))
    link_s, remaining, training = np.ones(2), np.array([1.0, 5.0]), np.zeros(2)
    alone = timetable(LAWS["overlap"](), Plan(ints([0, 1]), both), link_s, remaining, training)
    assert alone.begin_s.tolist() == [2.0, 6.0]
    plan = Plan(ints([0, 1]), both, synchronous=True)
    together = timetable(LAWS["overlap"](), plan, link_s, remaining, training)
    assert together.link_begin_s.tolist() == [5.0, 5.0]
    assert together.begin_s.tolist() == [6.0, 6.0]
    assert together.duration_s == 5.0
    assert timetable(LAWS["paper"](), plan, link_s, remaining, training).duration_s == 6.0


def server_round():
    """Workers 0 and 1 push to node 2 in stage 0 and pull from it in stage 1."""
    who, hub = ints([0, 1]), ints([2, 2])
    wires = join_links([links(hub, who, pushed=True), links(who, hub, stage=1)])
    gather, spread = mix_of(hub, who, np.full(2, 0.5)), mix_of(who, hub, np.ones(2))
    plan = Plan(who, wires, (gather, spread), synchronous=True)
    return plan, np.array([2.0, 1.0, 0.5, 4.0]), np.array([1.0, 3.0, 0.0])


def test_two_stages_over_a_server_by_hand():
    plan, link_s, remaining = server_round()
    table = timetable(LAWS["overlap"](), plan, link_s, remaining, np.zeros(2))
    assert table.link_begin_s.tolist() == [1.0, 3.0, 4.0, 4.0]  # the server has all after 4 s
    assert table.link_end_s.tolist() == [3.0, 4.0, 4.5, 8.0]
    assert table.begin_s.tolist() == [4.5, 8.0]
    assert table.comm_s.tolist() == [3.5, 5.0]
    assert table.duration_s == 3.0
    paper = timetable(LAWS["paper"](), plan, link_s, remaining, np.zeros(2))
    assert paper.comm_s.tolist() == [2.5, 5.0]
    assert paper.duration_s == 8.0


def test_background_links_keep_nobody_waiting():
    plan = Plan(ints([0]), links(ints([0]), ints([1]), background=True))
    for law in LAWS:
        table = timetable(LAWS[law](), plan, np.array([50.0]), np.array([1.0, 9.0]), np.zeros(1))
        assert (table.duration_s, table.comm_s.tolist()) == (1.0, [0.0])
        assert table.link_end_s.tolist() == [51.0]


def test_a_push_is_paid_by_its_sender():
    plan = Plan(ints([0]), links(ints([1]), ints([0]), pushed=True))
    assert exchange_s(plan, np.array([3.0]), 2).tolist() == [3.0, 0.0]
    table = timetable(LAWS["overlap"](), plan, np.array([3.0]), np.array([1.0, 7.0]), np.zeros(1))
    assert table.begin_s.tolist() == [4.0]


def test_on_the_testbed_a_receiver_fetches_what_is_pushed():
    plan = Plan(ints([0]), links(ints([1]), ints([0]), pushed=True))
    table = timetable(LAWS["testbed"](), plan, np.array([3.0]), np.array([1.0, 7.0]), np.zeros(1))
    assert table.begin_s.tolist() == [1.0]  # the sender goes on
    assert table.duration_s == 4.0  # the round waits for the receiver


def test_a_round_without_links_lasts_as_long_as_its_training():
    plan, none = Plan(ints([1, 0]), no_links()), np.zeros(0)
    for law in LAWS:
        assert (
            timetable(LAWS[law](), plan, none, np.array([2.0, 3.0]), np.zeros(2)).duration_s == 3.0
        )
    assert round_duration_s(none) == 0.0


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data(), st.integers(1, 6))
def test_expected_exchange_equals_brute_force(data, rank):
    n = data.draw(st.integers(1, 5))
    times = {p: float(data.draw(small)) for p in data.draw(pairs(n))}
    reach = graph_of(n, ints([i for i, _ in times]), ints([j for _, j in times]))
    link_s = [times[p] for p in zip(reach.dst.tolist(), reach.src.tolist(), strict=True)]
    expected = expected_exchange_s(reach, np.array(link_s), rank)
    assert expected.tolist() == paper_reference.expected_exchange(n, times, rank)


def test_idle_seconds_by_hand():
    """Worker 0 waits for worker 1; worker 2 is inactive and done after 1 of 8 seconds."""
    plan, link_s, remaining = server_round()
    workers = np.array([1.0, 3.0, 1.0])
    paper = timetable(LAWS["paper"](), plan, link_s, remaining, np.zeros(2))
    assert idle_s(LAWS["paper"](), paper, plan, link_s, workers, np.zeros(2)) == pytest.approx(
        4.5 + 0.0 + 7.0
    )
    overlap = timetable(LAWS["overlap"](), plan, link_s, remaining, np.zeros(2))
    waiting = overlap.comm_s - exchange_s(plan, link_s, 4)[plan.active]
    assert idle_s(LAWS["overlap"](), overlap, plan, link_s, workers, np.zeros(2)) == pytest.approx(
        2.0 + waiting.sum()
    )
    assert waiting.tolist() == [1.0, 0.0]  # the server sends when the slower upload is there
    testbed = timetable(LAWS["testbed"](), plan, link_s, remaining, np.array([3.0, 3.0]))
    assert testbed.duration_s == 8.0
    # Worker 0 waits a second for the server, trains from 4.5 to 7.5, and waits for the close.
    assert idle_s(
        LAWS["testbed"](), testbed, plan, link_s, workers, np.array([3.0, 3.0])
    ) == pytest.approx(1.0 + 0.5 + 7.0)
    away = np.array([1.0, 3.0, np.inf])
    assert idle_s(LAWS["paper"](), paper, plan, link_s, away, np.zeros(2)) == pytest.approx(4.5)


def test_remaining_training_by_hand():
    # Under way for 2 s, just over, long over, and to begin in 3 s.
    elapsed_s = np.array([2.0, 5.0, 9.0, -3.0])
    assert remaining_compute_s(np.full(4, 5.0), elapsed_s).tolist() == [3, 0, 0, 8]
