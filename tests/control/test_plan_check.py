"""Every rule of the contract of a plan, each broken once."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from dystop.control.plan_check import check_plan, source_kind
from dystop.errors import PlanError
from dystop.plan import Plan, links, mix_of, no_links
from dystop.sparse import graph_of, ints
from dystop.types import Capabilities, Mailbox, Mechanism
from support.strategies import random_view


@dataclass(frozen=True)
class Toy(Mechanism):
    """A mechanism that declares nothing."""

    name: ClassVar[str] = "toy"


@dataclass(frozen=True)
class Signed(Toy):
    """May have negative weights."""

    def capabilities(self):
        return Capabilities(mode="async", signed_rows=True)


@dataclass(frozen=True)
class Deltas(Toy):
    """May send updates."""

    def capabilities(self):
        return Capabilities(mode="async", deltas=True)


@pytest.fixture
def view():
    """Workers 0, 1, 2 in a row (1 in the middle), worker 3 absent, no mail."""
    base = random_view(1, 4, shape="empty", all_alive=True)
    reach = graph_of(4, ints([0, 1, 1, 2]), ints([1, 0, 2, 1]))
    nothing = ints([])
    return replace(
        base,
        t=7,
        alive=np.array([True, True, True, False]),
        reach=reach,
        distance_m=np.ones(4),
        link_s=np.ones(4),
        mailbox=Mailbox(nothing, nothing, nothing),
    )


def plan_of(active, pairs=(), weights=None, **more):
    """A plan with pulls and rows given as {(dst, source): weight}."""
    wires = links(ints([i for i, _ in pairs]), ints([j for _, j in pairs]))
    weights = {(i, i): 1.0 for i in active} if weights is None else weights
    dst, source = [i for i, _ in weights], [j for _, j in weights]
    kind = more.pop("kind", "linear")
    rows = mix_of(ints(dst), ints(source), np.array(list(weights.values()), float), kind=kind)
    return Plan(ints(active), wires, (rows,), **more)


def refused(view, plan, *words, mechanism=None):
    with pytest.raises(PlanError) as caught:
        check_plan(mechanism or Toy(), plan, view)
    for word in ("toy", *words):
        assert word in str(caught.value)
    assert caught.value.exit_code == 4


def test_good_plans_pass(view):
    check_plan(Toy(), plan_of([0]), view)
    check_plan(Toy(), plan_of([1], [(1, 0), (1, 2)], {(1, 0): 0.2, (1, 1): 0.3, (1, 2): 0.5}), view)
    check_plan(Toy(), Plan(ints([2, 0]), no_links(), steps=ints([0, 5])), view)
    check_plan(Toy(), plan_of([0], [(1, 0)], {(1, 0): 0.5, (1, 1): 0.5}), view)  # a passive mix


def test_nobody_active(view):
    refused(view, Plan(ints([]), no_links()), "active", "at least one", "round 7")


def test_active_twice(view):
    refused(view, Plan(ints([1, 1]), no_links()), "active twice", "round 7")


@pytest.mark.parametrize("who", [-1, 4])
def test_active_outside_the_fleet(view, who):
    refused(view, Plan(ints([who]), no_links()), "outside 0..3")


def test_active_but_absent(view):
    refused(view, plan_of([0, 3]), "worker 3", "absent", "round 7")


@pytest.mark.parametrize("steps", [[1], [1, -1], [1, 2, 3]])
def test_steps_do_not_fit(view, steps):
    refused(view, Plan(ints([0, 1]), no_links(), steps=ints(steps)), "steps", "round 7")


@pytest.mark.parametrize("pair", [(0, 2), (0, 0), (3, 1), (1, 3)])
def test_link_out_of_reach_to_self_or_to_the_dead(view, pair):
    wanted = f"{pair[1]} -> {pair[0]}"
    refused(view, plan_of([0], [pair]), wanted, "out of reach", "round 7")


@pytest.mark.parametrize("pair", [(0, 4), (0, 6), (-1, 5), (4, 1), (9, 9)])
def test_link_to_a_node_that_does_not_exist(view, pair):
    """(0, 4) must not be taken for the edge (1, 0), though 0 * 4 + 4 = 1 * 4 + 0."""
    refused(view, plan_of([0], [pair]))


def test_links_with_updates_must_be_declared(view):
    wires = links(ints([0]), ints([1]), delta=True)
    refused(view, Plan(ints([0]), wires), "deltas")
    check_plan(Deltas(), Plan(ints([0]), wires), view)


def test_rows_of_updates_must_be_declared_and_may_sum_to_anything(view):
    plan = plan_of([0], [(0, 1)], {(0, 1): 3.0}, kind="delta")
    refused(view, plan, "deltas=True")
    check_plan(Deltas(), plan, view)


def test_row_that_does_not_sum_to_one(view):
    plan = plan_of([0, 1], [(1, 0)], {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 0.4})
    refused(view, plan, "worker 1", "0.9", "not to 1")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_row_that_is_not_a_number(view, bad):
    refused(view, plan_of([0], (), {(0, 0): bad}), "worker 0")


def test_negative_weight(view):
    plan = plan_of([1], [(1, 0)], {(1, 0): 1.5, (1, 1): -0.5})
    refused(view, plan, "negative", "signed_rows")
    check_plan(Signed(), plan, view)


def test_source_without_a_link(view):
    plan = plan_of([1], [(1, 0)], {(1, 0): 0.5, (1, 1): 0.25, (1, 2): 0.25})
    refused(view, plan, "stage 0", "2 into 1", "link", "message", "round 7")


def test_link_of_another_stage_does_not_feed_a_row(view):
    plan = plan_of([1], [(1, 0)], {(1, 0): 0.5, (1, 1): 0.5})
    late = replace(plan, links=links(ints([1]), ints([0]), stage=1))
    refused(view, late, "stage 0", "0 into 1")


@pytest.mark.parametrize("row", [(1, 8), (7, 7), (-1, -1)])
def test_row_of_or_from_a_node_that_does_not_exist(view, row):
    """(1, 8) must not be taken for (3, 0), which has mail."""
    mailed = replace(view, mailbox=Mailbox(ints([3]), ints([0]), ints([1])))
    refused(mailed, plan_of([1], (), {row: 1.0}))


def test_mail_backs_a_source_and_a_link_wins_over_it(view):
    mailed = replace(view, mailbox=Mailbox(ints([0, 1]), ints([1, 2]), ints([3, 4])))
    plan = plan_of([1], [(1, 0)], {(1, 0): 0.5, (1, 1): 0.25, (1, 2): 0.25})
    check_plan(Toy(), plan, mailed)
    linked, by_mail = source_kind(plan, mailed, 0)
    assert linked.tolist() == [True, False, False]
    assert by_mail.tolist() == [False, False, True]
    both = replace(plan, links=links(ints([1, 1]), ints([0, 2])))
    linked, by_mail = source_kind(both, mailed, 0)
    assert linked.tolist() == [True, False, True]
    assert not by_mail.any()
