"""Measurements: bounded, by our own clock, and no use to a liar."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.coordinator.observations import JUMP, Observations, blend
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import Execute, Mail, Pull, Rejected, Report, Row, Stage, Used
from dystop.world import Compute
from support.coordinator_fixtures import QUICK, Rig, setup_for
from support.engine_fixtures import CALM


def probe(n=4, **params):
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
    assert blend(2.0, 2.0) == pytest.approx(2.0)
    assert blend(1.0, 0.0) == pytest.approx(0.7 + 0.3 / JUMP)
    assert blend(1.0, np.inf) == pytest.approx(0.7 + 0.3 * JUMP)


def test_link_seconds_as_receivers_say_first_guess_from_the_world():
    eyes, around = probe(time_scale=2.0)
    everyone = np.ones(4, bool)
    guess = eyes.observe(around, everyone, 0.0)
    assert np.array_equal(guess.link_s, around.link_s)
    eyes.exchanged(0, order(Pull(1)), mixed(used(1, 3.0)), 3.0)
    seen = eyes.observe(around, everyone, 0.0)
    edge = seen.reach.find(np.array([0, 1]), np.array([1, 0]))
    assert seen.link_s[edge].tolist() == [1.5, around.link_s[edge[1]]]
    eyes.guess(around, np.array([0, 0]), np.array([1, 2]))
    assert eyes.link_s(0, 1) == 1.5
    assert eyes.link_s(0, 2) == around.link_s[around.reach.find(np.array([0]), np.array([2]))[0]]


def test_what_a_receiver_claims_must_fill_the_time_we_have_seen():
    eyes, _ = probe()
    eyes.links = {1: 1.0, 2: 1.0}
    eyes.exchanged(0, order(Pull(1), Pull(2)), mixed(used(1, 1e-3), used(2, 5e-4)), 1.0)
    assert eyes.link_s(0, 1) == pytest.approx(1.0)
    assert eyes.link_s(0, 2) == pytest.approx(0.7 + 0.3 * 0.5)
    eyes.exchanged(0, order(Pull(1)), mixed(used(1, 0.0)), 1.0)
    assert eyes.link_s(0, 1) == pytest.approx(1.0)


def test_waiting_for_a_sender_is_not_a_slow_link():
    eyes, _ = probe()
    eyes.exchanged(0, order(Pull(1, exact=True)), mixed(used(1, 50.0)), 50.0)
    assert eyes.links == {}


def test_a_pull_that_ran_out_of_time_tells_how_slow_its_link_is():
    eyes, _ = probe()
    eyes.links = {1: 1.0, 2: 1.0, 3: 1.0}
    lost = [Rejected(1, 0, "timeout", 5.0, 20_000), Rejected(2, 0, "timeout", 5.0, 0)]
    fast = Rejected(3, 0, "timeout", 0.1, 20_000)
    eyes.exchanged(0, order(Pull(1), Pull(2), Pull(3)), mixed(rejected=(*lost, fast)), 5.0)
    assert eyes.link_s(0, 1) == pytest.approx(0.7 + 0.3 * 10.0)  # half of it took 5 s
    assert (eyes.link_s(0, 2), eyes.link_s(0, 3)) == (1.0, 1.0)  # nothing came; not slower


def test_training_is_timed_by_our_own_clock():
    eyes, around = probe()
    eyes.began(2, 4, 10.0)
    seen = eyes.observe(around, np.ones(4, bool), 11.0)
    assert seen.remaining_s.tolist() == [0.0, 0.0, 3.0, 0.0]
    eyes.trained(2, Report(1, "trained", seconds=1e-6, loss=0.25), around.step_s, 18.0)
    assert eyes.step_s[2] == pytest.approx(0.7 * 1.0 + 0.3 * 2.0)  # not what was claimed
    assert (eyes.training_s[2], eyes.loss[2], eyes.ended_s[2]) == (8.0, 0.25, 18.0)
    assert eyes.observe(around, np.ones(4, bool), 19.0).remaining_s[2] == 0.0


def test_an_overdue_training_becomes_less_attractive():
    eyes, around = probe()
    eyes.began(0, 4, 0.0)
    left = [eyes.remaining_s(around.step_s, at)[0] for at in (0.0, 4.0, 6.0, 20.0)]
    assert left == [4.0, 1e-6, 2.0, 16.0]


def test_an_emulated_device_is_never_faster_than_its_emulation():
    eyes, around = probe(devices="world")
    eyes.began(0, 4, 0.0)
    eyes.trained(0, Report(1, "trained"), around.step_s, 0.1)
    assert eyes.observe(around, np.ones(4, bool), 1.0).step_s[0] == around.step_s[0]


def test_a_failed_link_is_left_out_for_longer_each_time():
    eyes, around = probe()
    everyone = np.ones(4, bool)

    def usable(at, dst=0, src=1):
        reach = eyes.observe(around, everyone, at).reach
        return reach.find(np.array([dst]), np.array([src]))[0] >= 0

    eyes.failed(0, 1, "timeout", 0.0)
    assert [usable(14.9), usable(15.0), usable(1.0, 1, 0)] == [False, True, True]
    eyes.failed(0, 1, "timeout", 20.0)
    assert [usable(49.9), usable(50.0)] == [False, True]
    for _ in range(9):
        eyes.failed(0, 1, "timeout", 100.0)
    assert [usable(399.0), usable(400.0)] == [False, True]
    eyes.exchanged(0, order(Pull(1)), mixed(used(1, 0.1)), 0.1)
    assert usable(101.0)
    eyes.failed(0, 1, "unreachable", 500.0)
    assert [usable(501.0), usable(501.0, 1, 0), usable(501.0, 2, 1)] == [False, False, True]
    eyes.failed(0, 2, "busy", 500.0)
    assert usable(501.0, 0, 2)


def test_only_who_is_there_is_in_reach():
    eyes, around = probe()
    seen = eyes.observe(around, np.array([True, False, True, True]), 0.0)
    assert seen.alive.tolist() == [True, False, True, True]
    assert 1 not in {*seen.reach.dst.tolist(), *seen.reach.src.tolist()}
    assert len(seen.link_s) == len(seen.distance_m) == seen.reach.edges == 6


def test_mail_comes_and_is_used_up_by_an_activation():
    eyes, _ = probe()
    pushes = order(Pull(2, into="mail"), Pull(1, into="mail"), train=False, round_=3)
    eyes.mailed(0, pushes, mixed(used(2, 0.1, number=4), used(1, 0.1, number=-1), round_=3))
    box = eyes.mailbox()
    assert (box.dst.tolist(), box.src.tolist()) == ([0, 0], [1, 2])
    assert (box.version.tolist(), box.sent.tolist()) == ([0, 5], [3, 3])
    eyes.mailed(0, order(Pull(3, into="mail"), round_=4), mixed(used(3, 0.1), round_=4))
    assert eyes.mailbox().src.tolist() == [3]
    eyes.holds(0, [Mail(1, 7, 2)])
    assert (eyes.mailbox().src.tolist(), eyes.mailbox().version.tolist()) == ([1], [8])


def test_mail_that_is_kept_outlives_an_activation():
    eyes, _ = probe()
    eyes.holds(0, [Mail(1, 7, 2), Mail(2, 5, 2)])
    keeps = replace(order(Pull(1, into="mail"), round_=4), keep_mail=True)
    eyes.mailed(0, keeps, mixed(used(1, 0.1, number=8), round_=4))
    box = eyes.mailbox()
    assert list(zip(box.src.tolist(), box.version.tolist(), box.sent.tolist(), strict=True)) == [
        (1, 9, 4), (2, 6, 2)
    ]  # fmt: skip


def test_slow_mail_is_told_of_later():
    eyes, _ = probe()
    eyes.ordered(0, order(Pull(2, into="mail", background=True), round_=3))
    eyes.mailed(0, order(round_=6), mixed(used(2, 9.0, number=1), round_=6))
    assert eyes.mailbox().sent.tolist() == [3]


def test_all_of_it_survives_a_restart():
    eyes, around = probe()
    eyes.exchanged(0, order(Pull(1)), mixed(used(1, 3.0)), 3.0)
    eyes.failed(2, 1, "timeout", 5.0)
    eyes.began(3, 4, 2.0)
    eyes.holds(0, [Mail(1, 7, 2)])
    again, _ = probe()
    again.recall(eyes.state())
    assert again.links == eyes.links
    a, b = (p.observe(around, np.ones(4, bool), 6.0) for p in (eyes, again))
    assert np.array_equal(a.remaining_s, b.remaining_s)
    assert np.array_equal(a.reach.src, b.reach.src)
    assert again.mail == eyes.mail


def test_lying_about_speed_does_not_pay_b5():
    """A worker that claims a thousandfold bandwidth and no compute, against its honest twin."""
    slow = replace(CALM, compute=Compute(batch_s=0.5, spread=0.0))
    rig = Rig(setup_for("dystop", 6, rounds=60, world=slow, params=replace(QUICK, devices="free")))
    for puppet in rig.puppets.values():
        puppet.step_s, puppet.pull_s = 0.5, 1.5
    rig.puppets["w02"].claims = 1e-3
    rig.join_all()
    rig.run(600)
    assert len(rig.records) == 60
    late = [r for r in rig.records if r.round > 20]
    count = {k: sum(k in r.active_ids for r in late) for k in range(6)}
    honest = np.mean([count[k] for k in range(6) if k != 2])
    assert count[2] <= 1.5 * honest


def test_refusals_count_only_for_what_was_ordered():
    rig = Rig(setup_for("dystop", 4))
    rig.join_all()
    rig.run(1.05)
    node = next(iter(rig.machine.rounds.open.orders))
    bad = tuple(Rejected(k, 7, "norm") for k in range(4))
    rig.hear_from(f"w{node:02d}", Report(rig.machine.round, "mixed", (), bad))
    assert rig.machine.core.trust.strikes() == []
    assert rig.machine.core.probe.excluded == {}
