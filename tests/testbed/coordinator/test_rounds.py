"""Rounds of the coordinator machine with scripted workers in virtual time."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop as StopRule
from dystop.errors import ConfigError, RunFolderError
from dystop.mechanisms import MECHANISMS
from dystop.mechanisms.asydfl import AsyDFL
from dystop.mechanisms.dystop import DySTop
from dystop.mechanisms.sa_adfl import SAADFL
from dystop.mechanisms.staleness_weighted import StalenessWeighted, StalenessWeighting
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import Commit, FinishRun, MessageFromMember, SendToMember, Tick
from dystop.testbed.ledger.tables import read_blob, restore
from dystop.testbed.names import member_name
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Cancel, Execute, Heartbeat, Report, ReportAck, Used
from dystop.types import ControlState
from support.testbed.coordinator_fixtures import (
    QUICK,
    CoordinatorHarness,
    check_history,
    play,
    rows,
    sent,
    setup_for,
)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_to_its_end(name):
    harness = play(name, rounds=5)
    assert harness.finished == FinishRun("5 rounds are over")
    check_history(harness, 5)
    assert all(o.outcome == "DONE" for o in rows(harness, "orders"))
    assert [r.lost for r in harness.records] == [0] * 5
    assert not any(p.up for p in harness.workers.values() if p.name != "observer")


def test_control_state_follows_the_papers_equations():
    """S-9: without a fault staleness and queues are those of the simulator's equations."""
    harness = play(rounds=30)
    tau, q = np.zeros(5, int), np.zeros(5)
    bound = harness.setup.mechanism.capabilities().queue_bound
    for row, record in zip(rows(harness, "rounds"), harness.records, strict=True):
        control = read_blob(row.books)
        assert isinstance(control, ControlState)
        q = np.maximum(q + tau - bound, 0.0)
        tau = tau + 1
        tau[record.get("active_ids")] = 0
        assert control.staleness.tolist() == tau.tolist()
        assert control.queue.tolist() == q.tolist()


def test_a_round_lasts_as_long_as_its_slowest_worker():
    harness = play("d-psgd", rounds=4)
    assert [round(r.duration_s, 3) for r in harness.records] == [1.2] * 4
    scaled = play("d-psgd", rounds=4, params=replace(QUICK, time_scale=2.0))
    assert [round(r.duration_s, 3) for r in scaled.records] == [0.6] * 4


@pytest.mark.parametrize("name", ["dystop", "asydfl", "d-psgd"])
def test_a_worker_trains_from_the_end_of_its_own_exchange(name):
    """The law `testbed` (ADR 0006): what the coordinator believes when the next round opens."""
    harness = CoordinatorHarness(setup_for(name, rounds=12))
    for worker in harness.workers.values():
        worker.pull_s = 0.1 + 0.2 * worker.node
    harness.join_all()
    harness.run(60)
    early = 0
    for line, after in itertools.pairwise(harness.traces):
        orders, remaining_s = line["orders"], line["remaining_s"]
        columns = orders["node"], orders["train"], orders["exchange_s"]
        ends = {n: remaining_s[n] * trains + s for n, trains, s in zip(*columns, strict=True)}
        assert line["duration_s"] == pytest.approx(max(ends.values()), abs=1e-5)
        for node in itertools.compress(orders["node"], orders["train"]):
            trained_s = line["duration_s"] - ends[node]
            assert after["remaining_s"][node] == pytest.approx(max(1.0 - trained_s, 0.0), abs=1e-5)
            early += trained_s > 0.05
    assert early > 0 or name == "asydfl"  # which wakes one worker at a time


@pytest.mark.parametrize("mechanism", [AsyDFL(wakes="one"), SAADFL(), DySTop()], ids=str)
def test_the_coordinator_learns_how_long_links_take(mechanism):
    """Pulled or pushed: every transfer takes half a second, which the world does not expect."""
    harness = CoordinatorHarness(setup_for(mechanism, rounds=40))
    for worker in harness.workers.values():
        worker.pull_s = 0.5
    harness.join_all()
    harness.run(600)
    first, last = harness.traces[0]["link_s"], harness.traces[-1]["link_s"]
    assert max(first) < 0.1
    assert max(last) == pytest.approx(0.5, abs=0.1)


def test_the_plan_is_committed_before_any_order_is_sent():
    harness = CoordinatorHarness(setup_for("dystop"))
    seen = []

    def spy(name, message):
        if isinstance(message, Execute):
            seen.append(message.round in {r.round for r in rows(harness, "rounds")})
        if isinstance(message, ReportAck):
            kept = {(r.round, r.kind) for r in rows(harness, "reports")}
            seen.append((message.round, message.kind) in kept)
        return True

    harness.deliver = spy
    harness.join_all()
    harness.run(60)
    assert seen
    assert all(seen)


def test_one_batch_of_events_gives_at_most_one_commit():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join_all()
    events = [MessageFromMember(f"w{k:02d}", Heartbeat(1, 1)) for k in range(5)]
    actions = harness.machine.handle_all([*events, Tick()], harness.now_s + 4.0)
    assert sum(isinstance(a, Commit) for a in actions) <= 1
    assert (
        sum(isinstance(a, SendToMember) and isinstance(a.message, Heartbeat) for a in actions) == 5
    )


def test_the_first_round_waits_for_the_quorum_or_for_gather_s():
    harness = CoordinatorHarness(setup_for("dystop"))
    for name in ("w00", "w01", "w02"):
        harness.join(name)
        harness.later(0.5, lambda n=name: harness.beat(n))
    harness.run(4.0)
    assert harness.machine.rounds.current is None
    harness.run(2.0)
    assert harness.machine.rounds.current is not None
    assert harness.machine.rounds.current.view.alive.tolist() == [True, True, True, False, False]


def test_no_round_opens_without_the_server():
    harness = CoordinatorHarness(setup_for("fedavg"))
    for k in range(5):
        harness.join(f"w{k:02d}")
        harness.later(0.5, lambda n=f"w{k:02d}": harness.beat(n))
    harness.run(20)
    assert rows(harness, "rounds") == []
    harness.join("server")
    harness.run(1)
    assert rows(harness, "rounds")


def test_stop_rules():
    assert play(stop=StopRule(100, seconds=3.0)).finished.reason == "3 emulated seconds are over"
    assert play(stop=StopRule(100, loss=0.6)).finished.reason == "target loss reached"
    watched = play(stop=StopRule(100, accuracy=0.4), params=replace(QUICK, observer=True))
    assert watched.finished.reason == "target accuracy reached"
    assert watched.records[3].accuracy == 0.5


def test_records_wait_for_their_score_and_are_published_in_order():
    harness = CoordinatorHarness(
        setup_for("dystop", rounds=9, params=replace(QUICK, observer=True))
    )
    harness.join_all()
    harness.run(600)
    assert [r.round for r in harness.records] == list(range(1, 10))
    assert [r.accuracy for r in harness.records] == [None] * 3 + [0.5] + [None] * 3 + [0.5, 0.5]
    assert [t["round"] for t in harness.traces] == list(range(1, 10))
    assert rows(harness, "kept")[0].key == "state"
    assert not [k for k in rows(harness, "kept") if k.key.startswith("seen:") and k.key != "seen:9"]


def test_a_silent_observer_does_not_block_records():
    harness = CoordinatorHarness(
        setup_for("dystop", rounds=5, params=replace(QUICK, observer=True))
    )
    harness.workers["observer"].mute = True
    harness.join_all()
    harness.run(200)
    assert harness.finished
    assert [r.accuracy for r in harness.records] == [None] * 5


def test_what_the_testbed_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="compensate"):
        setup_for(StalenessWeighted(DySTop(), StalenessWeighting("compensate")))
    with pytest.raises(ConfigError, match=r"nodes? .*0 .*\[\]"):
        setup_for("dystop", members=())
    harness = play(rounds=1)
    with pytest.raises(RunFolderError, match="ee" * 8):
        CoordinatorMachine(replace(harness.setup, run="ee" * 16), restore(harness.ledger))


# Reports and deadlines ----------------------------------------------------------------------------


def test_messages_received_three_times_change_nothing_c8():
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


def test_a_late_report_is_applied_once():
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
    assert before.staleness[2] == 1  # it is left out since then
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


def test_repeated_and_future_reports_have_no_effect_f10():
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


def claiming(harness, name, seconds, orders):
    """Let a worker claim these seconds for every pull of some orders, then never report again."""
    honest, lied = harness.send_report, set()

    def send(p, report):
        if p.name == name and report.kind == "mixed":
            lied.add(report.round)
            if len(lied) > orders:
                return
            report = replace(report, used=tuple(replace(u, seconds=seconds) for u in report.used))
        honest(p, report)

    harness.send_report = send


@pytest.mark.parametrize("name", ["d-psgd", "dystop"])
def test_claims_of_a_billion_seconds_stop_nobody(name):
    harness = CoordinatorHarness(setup_for(name, rounds=10_000))
    harness.join_all()
    harness.run(3.0)
    claiming(harness, "w02", 1e9, orders=12)
    began, opened_s = len(harness.records), harness.machine.state.at_s
    harness.run(120.0)
    state = harness.machine.state
    assert state.members.get("w02").state == "QUARANTINED"
    assert {(e.member, e.kind) for e in state.incidents.written} == {("w02", "bad_message")}
    assert max(state.observations.links.values()) < 10.0
    calm = CoordinatorHarness(setup_for(name, rounds=10_000))
    calm.join_all()
    calm.run(3.0)
    calm_before = len(calm.records)
    calm.run(120.0)
    assert len(harness.records) - began > 0.7 * (len(calm.records) - calm_before), opened_s


def test_seconds_within_the_tolerance_make_no_link_slow():
    """The coordinator allows a second for clocks, but its estimates take only what it observed."""
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=10_000))
    harness.join_all()
    harness.run(3.0)
    before = dict(harness.machine.state.observations.links)
    claiming(harness, "w02", 1.1, orders=10_000)
    harness.run(60.0)
    state = harness.machine.state
    assert state.strikes.all() == []
    most_s = max(s for key, s in state.observations.links.items())
    assert most_s <= 1.2 * max(max(before.values()), 0.3)


def test_an_honest_report_after_a_restart_of_the_coordinator_is_no_lie():
    """The clock of the run stood still while there was no coordinator."""
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=20))
    for worker in harness.workers.values():
        worker.pull_s = 8.0
    harness.join_all()
    harness.run(6.0)
    harness.restart()
    harness.run(20.0)
    assert harness.machine.state.strikes.all() == []
    assert len(harness.records) >= 1


def test_no_round_waits_much_longer_than_the_last_ones():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=10_000))
    harness.join_all()
    harness.run(60.0)
    state = harness.machine.state
    usual_s = float(np.median(state.recent_s))
    assert len(state.recent_s) == 20
    for key in state.observations.links:  # however they came to be
        state.observations.links[key] = 1e6
    t = harness.machine.round
    harness.run(10.0, lambda: harness.machine.round > t + 1)
    now = harness.machine.rounds.current
    assert now.deadline_s - now.line.opened_s <= 10.0 * usual_s + 10.0 + 1e-6
    harness.restart()
    assert len(harness.machine.state.recent_s) == 20


@pytest.mark.parametrize("name", ["d-psgd", "fedavg", "gossipfl", "dystop"])
def test_rounds_go_on_without_a_worker_that_never_answers(name):
    harness = CoordinatorHarness(setup_for(name, rounds=100))
    harness.join_all()
    harness.run(3.0)
    harness.workers["w02"].mute = True
    harness.run(90.0)
    outcomes = {(o.round, o.node): o.outcome for o in rows(harness, "orders")}
    failed = [r for (r, node), outcome in outcomes.items() if outcome == "FAILED" and node == 2]
    opened = {r.round: r.opened_s for r in rows(harness, "rounds")}
    pauses = np.diff([opened[r] for r in failed])
    assert len(failed) >= 2
    assert (pauses >= 15.0 * 2.0 ** np.arange(len(pauses))).all()  # longer each time
    waits = [harness.records[r - 1].duration_s for r in failed]
    assert waits[0] == pytest.approx(10.0, abs=0.2)
    assert max(waits[1:]) < 6.0  # rounds wait less for a worker on trial
    assert [e.member for e in harness.machine.state.incidents.written] == ["w02"]
    assert (
        harness.machine.state.control.staleness[2] < 20
    )  # it does not grow while the worker is left out


def test_an_excluded_worker_stays_out_after_a_restart_of_the_coordinator():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=100))
    harness.join_all()
    harness.run(3.0)
    harness.workers["w02"].mute = True
    harness.run(11.0)
    assert not harness.machine.state.present()[2]
    harness.workers["w02"].mute = False
    harness.restart()
    harness.run(2.0)
    assert harness.machine.state.present().tolist() == [True, True, False, True, True]
    harness.run(20.0)
    assert harness.machine.state.present().all()


def test_a_late_report_or_a_restart_ends_the_first_exclusion():
    for restart in (False, True):
        harness = CoordinatorHarness(setup_for("d-psgd", rounds=100))
        harness.join_all()
        harness.run(3.0)
        worker = harness.workers["w02"]
        worker.pull_s = 13.0
        harness.run(12.0)
        assert not harness.machine.state.present()[2]
        if restart:
            worker.incarnation += 1
            harness.join("w02")
        else:
            harness.run(4.0)
        assert harness.machine.state.present()[2]


def test_limits_allow_for_a_whole_model_where_links_carry_less():
    """A restarted worker needs whole models, which are a thousand messages long here."""
    budgets = []
    for longest in (1.0, 1000.0):
        harness = CoordinatorHarness(setup_for("d-psgd", rounds=2, longest_message=longest))
        harness.join_all()
        harness.run(0.3)
        now = harness.machine.rounds.current
        budgets.append(max(order.budget_s for order in now.orders.values()))
        assert now.deadline_s - now.line.opened_s > budgets[-1]
    assert budgets[0] == 5.0
    assert budgets[1] > 4 * budgets[0]


def test_a_training_that_is_late_does_not_extend_the_deadline():
    harness = CoordinatorHarness(setup_for("dystop", rounds=1000))
    harness.join_all()
    harness.run(3.0)
    harness.workers["w02"].step_s = 1e6
    harness.run(80.0)
    assert max(r.duration_s for r in harness.records) <= 10.2
    assert len(harness.records) > 60
    assert [(e.member, e.kind) for e in harness.machine.state.incidents.written] == [
        ("w02", "hung")
    ]


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
