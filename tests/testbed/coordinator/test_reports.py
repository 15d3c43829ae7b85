"""Reports in any order and number, deadlines, and the pace of links."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.coordinator.machine import CoordinatorMachine, member_name
from dystop.testbed.events import MessageFromMember
from dystop.testbed.ledger.tables import read_blob, restore
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Cancel, Execute, Heartbeat, Report, ReportAck, Used
from support.coordinator_fixtures import QUICK, CoordinatorHarness, play, rows, sent, setup_for


def test_everything_three_times_changes_nothing_c8():
    clean = play(rounds=6)
    harness = CoordinatorHarness(setup_for("dystop", rounds=6))
    once = harness.receive

    def thrice(name, message):
        for _ in range(1 if isinstance(message, Heartbeat) else 3):
            once(name, message)

    harness.receive = thrice
    harness.join_all()
    harness.run(200)
    assert [r.to_json() for r in harness.records] == [r.to_json() for r in clean.records]
    assert len(rows(harness, "reports")) == len(rows(clean, "reports"))


def test_trained_before_mixed_waits():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join_all()
    harness.run(0.5)
    node, order = next((n, o) for n, o in harness.machine.rounds.current.orders.items() if o.train)
    name = member_name(node, 5)
    harness.sent.clear()
    harness.receive(name, Report(order.round, "trained"))
    assert sent(harness, ReportAck) == []
    harness.receive(name, Report(order.round, "mixed"))
    harness.receive(name, Report(order.round, "trained"))
    assert [a.kind for a in sent(harness, ReportAck, name)] == ["mixed", "trained"]


def test_a_failed_order_does_not_reset_staleness():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=3))
    harness.join_all()
    harness.run(0.5)
    harness.workers["w02"].mute = True
    harness.receive("w02", Report(1, "failed", text="disk"))
    harness.run(1.5)
    control = read_blob(rows(harness, "rounds")[0].books)
    assert control.staleness.tolist() == [0, 0, 1, 0, 0]
    assert control.version.tolist() == [1, 1, 0, 1, 1]
    assert sent(harness, Cancel, "w02") == []


def test_late_is_applied_once():
    harness = CoordinatorHarness(
        setup_for("d-psgd", rounds=40, params=replace(QUICK, timeouts=Timeouts(round_s=3.0)))
    )
    harness.workers["w02"].pull_s = 30.0
    harness.join_all()
    harness.run(8.0)
    assert sent(harness, Cancel, "w02")[0].round == 1
    line = next(o for o in rows(harness, "orders") if (o.round, o.node) == (1, 2))
    assert (line.outcome, line.train) == ("FAILED", 1)
    before = harness.machine.state.control
    assert before.staleness[2] > 1
    order = next(m for n, m in harness.sent if n == "w02" and isinstance(m, Execute))
    used = tuple(Used(p.node, 0, 1, 0, "", 100, 0.1) for p in order.stages[0].pulls[:1])
    for _ in range(3):
        harness.receive("w02", Report(1, "mixed", used))
    after = harness.machine.state.control
    assert (after.staleness[2], after.version[2]) == (0, before.version[2] + 1)
    assert after.pulls.counts.sum() == before.pulls.counts.sum() + 1
    assert after.wire_bytes == before.wire_bytes + 100
    assert after.t == before.t
    line = next(o for o in rows(harness, "orders") if (o.round, o.node) == (1, 2))
    assert line.outcome == "LATE"
    assert [(x.round, x.node) for x in rows(harness, "lates")] == [(1, 2)]
    assert [r.late for r in rows(harness, "reports") if r.node == 2 and r.kind == "mixed"] == [1]
    assert len([a for a in sent(harness, ReportAck, "w02") if a.kind == "mixed"]) == 3
    again = CoordinatorMachine(harness.setup, restore(harness.ledger)).state.control
    assert np.array_equal(again.staleness, after.staleness)
    assert np.array_equal(again.pulls.counts, after.pulls.counts)


def test_reports_of_another_time_have_no_effect_f10():
    harness = CoordinatorHarness(setup_for("dystop", rounds=20))
    harness.join_all()
    harness.run(4.0)
    old = [MessageFromMember(f"w{r.node:02d}", r.json) for r in rows(harness, "reports")]
    assert old
    kept, control = len(rows(harness, "reports")), harness.machine.state.control
    for event in old:
        harness.receive(event.name, decode(event.message.encode(), "coordinator"))
    harness.receive("w00", Report(10_000, "mixed"))
    harness.receive("w00", Report(10_000, "trained"))
    assert len(rows(harness, "reports")) == kept
    assert harness.machine.state.control is control


def test_deadline_and_budget():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=2))
    harness.join_all()
    harness.run(0.3)
    now = harness.machine.rounds.current
    assert now.deadline_s - now.line.opened_s == 10.0
    assert {o.budget_s for o in now.orders.values()} == {5.0}
    capped = Timeouts(round_cap_s=4.0, pull_s=60.0)
    harness = CoordinatorHarness(
        setup_for("d-psgd", rounds=2, params=replace(QUICK, timeouts=capped))
    )
    harness.join_all()
    harness.run(0.3)
    now = harness.machine.rounds.current
    assert now.deadline_s - now.line.opened_s == 4.0
    assert {o.budget_s for o in now.orders.values()} == {3.0}


def test_links_are_paced_to_the_world():
    params = replace(QUICK, links="world", time_scale=0.5)
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=2, params=params))
    harness.join_all()
    harness.run(0.3)
    plan, view = harness.machine.rounds.current.plan, harness.machine.rounds.current.view
    want = harness.setup.world.transfer(1, view.now_s, plan.links.dst, plan.links.src, 1.0).seconds
    got = {
        (i, p.node): p.bytes_per_s
        for i, o in harness.machine.rounds.current.orders.items()
        for p in o.stages[0].pulls
    }
    for k, seconds in enumerate(want):
        pair = int(plan.links.dst[k]), int(plan.links.src[k])
        assert got[pair] == pytest.approx(40_000 / (seconds * 0.5))
