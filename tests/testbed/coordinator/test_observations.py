"""Measurements: bounded steps, the coordinator's clock, and no advantage from false reports."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.coordinator.observations import MAX_FACTOR, Observations, bounded_average
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import Execute, Mail, Pull, Rejected, Report, Row, Stage, Used
from dystop.world import Compute
from support.engine_fixtures import STABLE_WORLD
from support.testbed.coordinator_fixtures import QUICK, CoordinatorHarness, setup_for


def new_observations(n=4, **params):
    setup = setup_for("dystop", n)
    params = TestbedParams(**{"devices": "free", **params})
    return Observations(setup.fleet, setup.steps, params), setup.world.observe(1, 0.0)


def order(*pulls, train=True, round_=5):
    return Execute(1, round_, train, (Stage(tuple(pulls), Row((0,), (1.0,))),), steps=4)


def mixed(*used, rejected=(), round_=5):
    return Report(round_, "mixed", tuple(used), tuple(rejected))


def used(node, seconds, stage=0, number=0):
    return Used(node, stage, 1, number, "", 40_000, seconds)


def test_an_estimate_moves_by_a_bounded_step():
    assert bounded_average(2.0, 2.0) == pytest.approx(2.0)
    assert bounded_average(1.0, 0.0) == pytest.approx(0.7 + 0.3 / MAX_FACTOR)
    assert bounded_average(1.0, np.inf) == pytest.approx(0.7 + 0.3 * MAX_FACTOR)


def test_link_seconds_come_from_the_world_and_then_from_reports():
    observations, world = new_observations(time_scale=2.0)
    everyone = np.ones(4, bool)
    guess = observations.observe(world, everyone, 0.0)
    assert np.array_equal(guess.link_s, world.link_s)
    observations.exchange_reported(0, order(Pull(1)), mixed(used(1, 3.0)), 3.0)
    seen = observations.observe(world, everyone, 0.0)
    edge = seen.reach.find(np.array([0, 1]), np.array([1, 0]))
    assert seen.link_s[edge].tolist() == [1.5, world.link_s[edge[1]]]
    observations.assume_link_times(world, np.array([0, 0]), np.array([1, 2]))
    assert observations.link_s(0, 1) == 1.5
    assert (
        observations.link_s(0, 2) == world.link_s[world.reach.find(np.array([0]), np.array([2]))[0]]
    )


def test_claimed_link_seconds_are_bounded_by_the_observed_time():
    observations, _ = new_observations()
    observations.links = {1: 1.0, 2: 1.0}
    observations.exchange_reported(
        0, order(Pull(1), Pull(2)), mixed(used(1, 1e-3), used(2, 5e-4)), 1.0
    )
    assert observations.link_s(0, 1) == pytest.approx(1.0)
    assert observations.link_s(0, 2) == pytest.approx(0.7 + 0.3 * 0.5)
    observations.exchange_reported(0, order(Pull(1)), mixed(used(1, 0.0)), 1.0)
    assert observations.link_s(0, 1) == pytest.approx(1.0)


def test_seconds_beyond_the_observed_ones_are_scaled_down():
    observations, _ = new_observations()
    observations.links = {1: 1.0, 2: 1.0, 3: 1.0}
    pulls = order(Pull(1), Pull(2), Pull(3))
    lost = Rejected(3, 0, "timeout", 1e9, 20_000)
    observations.exchange_reported(
        0, pulls, mixed(used(1, 1e9), used(2, 5e8), rejected=(lost,)), 2.0
    )
    assert observations.link_s(0, 1) == pytest.approx(0.7 + 0.3 * 2.0)
    assert observations.link_s(0, 2) == pytest.approx(1.0)
    assert observations.link_s(0, 3) == pytest.approx(0.7 + 0.3 * 4.0)  # half of it, in 2 s
    observations.exchange_reported(0, order(Pull(2)), mixed(used(2, 1e9)), 0.1, most_s=1.0)
    assert observations.link_s(0, 2) == pytest.approx(1.0)


def test_fewer_bytes_than_ordered_do_not_make_a_link_slow():
    observations, _ = new_observations()
    observations.links = {1: 1.0, 2: 1.0}
    few = replace(used(1, 1.0), bytes=1), replace(used(2, 0.25), bytes=1)
    pulls = order(Pull(1), Pull(2, mask=(0, 0.25)))
    observations.exchange_reported(0, pulls, mixed(*few), 1.0)
    assert (observations.link_s(0, 1), observations.link_s(0, 2)) == (1.0, 1.0)


def test_an_exchange_whose_start_nobody_saw_measures_nothing():
    observations, _ = new_observations()
    observations.pull_failed(0, 1, "timeout", 0.0)
    observations.exchange_reported(0, order(Pull(1)), mixed(used(1, 9.0)), None)
    assert (observations.links, observations.excluded) == ({}, {})


def test_waiting_for_a_sender_is_not_a_slow_link():
    observations, _ = new_observations()
    observations.exchange_reported(0, order(Pull(1, exact=True)), mixed(used(1, 50.0)), 50.0)
    assert observations.links == {}
    others = 50.0, [2, 3]
    observations.exchange_reported(0, order(Pull(1, exact=True)), mixed(used(1, 50.0)), *others)
    assert observations.links == {}


def test_an_exact_pull_from_an_idle_sender_measures_its_link():
    """A push is one: without this a push mechanism never learns how long its links take."""
    observations, _ = new_observations()
    pulls = order(Pull(1, exact=True), Pull(2, exact=True))
    observations.exchange_reported(0, pulls, mixed(used(1, 3.0), used(2, 9.0)), 9.0, [1])
    assert observations.link_s(0, 1) == 3.0
    assert observations.link_s(0, 2) is None
    lost = mixed(rejected=(Rejected(1, 0, "timeout", 5.0, 20_000),))
    observations.exchange_reported(0, pulls, lost, 5.0, [1])
    assert observations.link_s(0, 1) == pytest.approx(bounded_average(3.0, 10.0))


def test_a_pull_that_timed_out_raises_the_estimate_of_its_link():
    observations, _ = new_observations()
    observations.links = {1: 1.0, 2: 1.0, 3: 1.0}
    lost = [Rejected(1, 0, "timeout", 5.0, 20_000), Rejected(2, 0, "timeout", 5.0, 0)]
    fast = Rejected(3, 0, "timeout", 0.1, 20_000)
    observations.exchange_reported(
        0, order(Pull(1), Pull(2), Pull(3)), mixed(rejected=(*lost, fast)), 5.0
    )
    assert observations.link_s(0, 1) == pytest.approx(0.7 + 0.3 * 10.0)  # half of it took 5 s
    assert (observations.link_s(0, 2), observations.link_s(0, 3)) == (
        1.0,
        1.0,
    )  # nothing came; not slower


def test_training_is_timed_by_the_coordinators_clock():
    observations, world = new_observations()
    observations.training_started(2, 4, 10.0)
    seen = observations.observe(world, np.ones(4, bool), 11.0)
    assert seen.remaining_s.tolist() == [0.0, 0.0, 3.0, 0.0]
    observations.training_finished(
        2, Report(1, "trained", seconds=1e-6, loss=0.25), world.step_s, 18.0
    )
    assert observations.step_s[2] == pytest.approx(0.7 * 1.0 + 0.3 * 2.0)  # not what was claimed
    assert (observations.training_s[2], observations.loss[2], observations.ended_s[2]) == (
        8.0,
        0.25,
        18.0,
    )
    assert observations.observe(world, np.ones(4, bool), 19.0).remaining_s[2] == 0.0


def test_an_overdue_training_becomes_less_attractive():
    observations, world = new_observations()
    observations.training_started(0, 4, 0.0)
    left = [observations.remaining_s(world.step_s, at)[0] for at in (0.0, 4.0, 6.0, 20.0)]
    assert left == [4.0, 1e-6, 2.0, 16.0]


def test_an_emulated_device_is_never_faster_than_its_emulation():
    observations, world = new_observations(devices="world")
    observations.training_started(0, 4, 0.0)
    observations.training_finished(0, Report(1, "trained"), world.step_s, 0.1)
    assert observations.observe(world, np.ones(4, bool), 1.0).step_s[0] == world.step_s[0]


def test_a_failed_link_is_excluded_for_longer_each_time():
    observations, world = new_observations()
    everyone = np.ones(4, bool)

    def usable(at, dst=0, src=1):
        reach = observations.observe(world, everyone, at).reach
        return reach.find(np.array([dst]), np.array([src]))[0] >= 0

    observations.pull_failed(0, 1, "timeout", 0.0)
    assert [usable(14.9), usable(15.0), usable(1.0, 1, 0)] == [False, True, True]
    observations.pull_failed(0, 1, "timeout", 20.0)
    assert [usable(49.9), usable(50.0)] == [False, True]
    for _ in range(9):
        observations.pull_failed(0, 1, "timeout", 100.0)
    assert [usable(399.0), usable(400.0)] == [False, True]
    observations.exchange_reported(0, order(Pull(1)), mixed(used(1, 0.1)), 0.1)
    assert usable(101.0)
    observations.pull_failed(0, 1, "unreachable", 500.0)
    assert [usable(501.0), usable(501.0, 1, 0), usable(501.0, 2, 1)] == [False, False, True]
    observations.pull_failed(0, 2, "busy", 500.0)  # it said so for as long as it was asked
    assert [usable(501.0, 0, 2), usable(501.0, 2, 0)] == [False, True]


def test_a_sender_that_keeps_several_waiting_is_excluded_for_everybody():
    observations, world = new_observations()

    def served(at, src=1):
        reach = observations.observe(world, np.ones(4, bool), at).reach
        return sorted(reach.dst[reach.src == src].tolist())

    observations.pull_failed(0, 1, "timeout", 0.0)
    observations.pull_failed(0, 1, "busy", 0.0)
    observations.pull_failed(2, 1, "norm", 0.0)  # it did serve this one
    assert served(0.1) == [3]
    observations.pull_failed(2, 1, "timeout", 1.0)
    assert (served(1.1), served(1.1, src=2)) == ([], [0, 1, 3])
    observations.pull_failed(3, 1, "timeout", 1.0)  # it is excluded already, but this is its own
    assert (served(30.5), served(32.0)) == ([0], [0, 2, 3])
    observations.pull_failed(0, 1, "timeout", 100.0)
    assert (served(120.0), served(165.0)) == ([], [0, 2, 3])
    observations.exchange_reported(3, order(Pull(1)), mixed(used(1, 0.1)), 0.1)
    assert served(101.0) == [3]
    observations.pull_failed(2, 1, "timeout", 200.0)  # the first since it served somebody
    assert served(201.0) == [0, 3]


def test_two_liars_stop_an_honest_sender_for_no_longer_than_themselves():
    observations, _ = new_observations()
    at_s = 0.0
    for _ in range(4):
        observations.pull_failed(0, 1, "timeout", at_s)
        observations.pull_failed(2, 1, "timeout", at_s)
        lengths = [observations.excluded[dst, 1].length_s for dst in (3, 0, 2)]
        assert lengths[0] == 15.0 <= min(lengths[1:])
        at_s += max(lengths)  # their own links are free again
        observations.exchange_reported(3, order(Pull(1)), mixed(used(1, 0.1)), 0.1)
    assert min(lengths[1:]) >= 120.0


def test_only_joined_members_are_in_reach():
    observations, world = new_observations()
    seen = observations.observe(world, np.array([True, False, True, True]), 0.0)
    assert seen.alive.tolist() == [True, False, True, True]
    assert 1 not in {*seen.reach.dst.tolist(), *seen.reach.src.tolist()}
    assert len(seen.link_s) == len(seen.distance_m) == seen.reach.edges == 6


def test_mail_comes_and_is_used_up_by_an_activation():
    observations, _ = new_observations()
    pushes = order(Pull(2, into="mail"), Pull(1, into="mail"), train=False, round_=3)
    observations.mail_reported(
        0, pushes, mixed(used(2, 0.1, number=3), used(1, 0.1, number=-1), round_=3)
    )
    box = observations.mailbox()
    assert (box.dst.tolist(), box.src.tolist()) == ([0, 0], [1, 2])
    assert (box.version.tolist(), box.sent.tolist()) == ([0, 4], [3, 3])
    observations.mail_reported(
        0, order(Pull(3, into="mail"), round_=4), mixed(used(3, 0.1), round_=4)
    )
    assert observations.mailbox().src.tolist() == [3]
    observations.mailbox_reported(0, [Mail(1, 7, 2)], 9)
    assert (observations.mailbox().src.tolist(), observations.mailbox().version.tolist()) == (
        [1],
        [8],
    )


def test_mail_that_is_kept_outlives_an_activation():
    observations, _ = new_observations()
    observations.mailbox_reported(0, [Mail(1, 7, 2), Mail(2, 5, 2)], 9)
    keeps = replace(order(Pull(1, into="mail"), round_=8), keep_mail=True)
    observations.mail_reported(0, keeps, mixed(used(1, 0.1, number=8), round_=8))
    box = observations.mailbox()
    assert list(zip(box.src.tolist(), box.version.tolist(), box.sent.tolist(), strict=True)) == [
        (1, 9, 8), (2, 6, 2)
    ]  # fmt: skip


def test_slow_mail_is_reported_later():
    observations, _ = new_observations()
    observations.order_issued(0, order(Pull(2, into="mail", background=True), round_=3))
    observations.mail_reported(0, order(round_=6), mixed(used(2, 9.0, number=1), round_=6))
    assert observations.mailbox().sent.tolist() == [3]


def test_observations_survive_a_restart():
    observations, world = new_observations()
    observations.exchange_reported(0, order(Pull(1)), mixed(used(1, 3.0)), 3.0)
    observations.pull_failed(2, 1, "timeout", 5.0)
    observations.training_started(3, 4, 2.0)
    observations.mailbox_reported(0, [Mail(1, 7, 2)], 9)
    again, _ = new_observations()
    again.restore(observations.to_tree())
    assert again.links == observations.links
    a, b = (p.observe(world, np.ones(4, bool), 6.0) for p in (observations, again))
    assert np.array_equal(a.remaining_s, b.remaining_s)
    assert np.array_equal(a.reach.src, b.reach.src)
    assert again.mail == observations.mail


def test_false_claims_about_speed_give_no_advantage_b5():
    """One worker claims a thousandfold bandwidth and no compute; the others are honest."""
    slow = replace(STABLE_WORLD, compute=Compute(batch_s=0.5, spread=0.0))
    harness = CoordinatorHarness(
        setup_for("dystop", 6, rounds=60, world=slow, params=replace(QUICK, devices="free"))
    )
    for worker in harness.workers.values():
        worker.step_s, worker.pull_s = 0.5, 1.5
    harness.workers["w02"].claims = 1e-3
    harness.join_all()
    harness.run(600)
    assert len(harness.records) == 60
    late = [r for r in harness.records if r.round > 20]
    count = {k: sum(k in r.get("active_ids") for r in late) for k in range(6)}
    honest = np.mean([count[k] for k in range(6) if k != 2])
    assert count[2] <= 1.5 * honest


def test_refusals_count_only_for_what_was_ordered():
    harness = CoordinatorHarness(setup_for("dystop", 4))
    harness.join_all()
    harness.run(1.05)
    node = next(iter(harness.machine.rounds.current.orders))
    bad = tuple(Rejected(k, 7, "norm") for k in range(4))
    harness.receive(f"w{node:02d}", Report(harness.machine.round, "mixed", (), bad))
    assert [(s.reporter, s.accused) for s in harness.machine.state.strikes.all()] == [(-1, node)]
    assert harness.machine.state.observations.excluded == {}
