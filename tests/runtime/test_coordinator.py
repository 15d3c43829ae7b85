"""The coordinator machine, driven by hand and by scripted workers in virtual time."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from coordinator_rig import QUICK, RUN, Rig, rows, setup_for

from dystop.control.remedy import Remedy
from dystop.control.rules import Stop as StopRule
from dystop.errors import ConfigError, RunFolderError
from dystop.mechanisms import MECHANISMS
from dystop.runtime.codec import decode
from dystop.runtime.coordinator import CoordinatorMachine, member_name
from dystop.runtime.events import Commit, Finish, Heard, Tell, Tick
from dystop.runtime.ledger import read_blob, restore
from dystop.runtime.messages import (
    Cancel,
    Complaint,
    Execute,
    ExecuteAck,
    Heartbeat,
    JoinOk,
    Leave,
    Reject,
    Rejected,
    Report,
    ReportAck,
    Roster,
    Used,
)
from dystop.runtime.params import Limits, Timeouts
from dystop.types import Books


def told(rig, kind, name=None):
    return [m for n, m in rig.told if isinstance(m, kind) and name in (None, n)]


def play(mechanism="dystop", rounds=8, n=5, seconds=600.0, **changes):
    rig = Rig(setup_for(mechanism, n, rounds, **changes))
    rig.join_all()
    rig.run(seconds)
    return rig


def check_history(rig, rounds):
    """Rounds closed once each without a gap; every order has one ending; applied = DONE or LATE."""
    closed = rows(rig, "rounds")
    assert [r.round for r in closed] == list(range(1, rounds + 1))
    assert all(r.closed_s is not None for r in closed)
    orders = rows(rig, "orders")
    assert {o.outcome for o in orders} <= {"DONE", "FAILED", "LATE", "CANCELLED"}
    applied = {(o.round, o.node) for o in orders if o.outcome in ("DONE", "LATE")}
    did = Counter((r, p.node) for p in rig.puppets.values() for r in p.orders)
    assert set(did) == applied
    assert max(did.values()) == 1
    assert sorted({r.round for r in rig.records}) == list(range(1, rounds + 1))


# The happy path ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_to_its_end(name):
    rig = play(name, rounds=5)
    assert rig.finished == Finish("5 rounds are over")
    check_history(rig, 5)
    assert all(o.outcome == "DONE" for o in rows(rig, "orders"))
    assert [r.lost for r in rig.records] == [0] * 5
    assert not any(p.up for p in rig.puppets.values() if p.name != "observer")


def test_books_follow_the_papers_equations():
    """S-9: without a fault staleness and queues are those of the simulator's equations."""
    rig = play(rounds=30)
    tau, q = np.zeros(5, int), np.zeros(5)
    bound = rig.setup.mechanism.queue_bound
    for row, record in zip(rows(rig, "rounds"), rig.records, strict=True):
        books = read_blob(row.books)
        assert isinstance(books, Books)
        q = np.maximum(q + tau - bound, 0.0)
        tau = tau + 1
        tau[record.active_ids] = 0
        assert books.staleness.tolist() == tau.tolist()
        assert books.queue.tolist() == q.tolist()


def test_a_round_lasts_as_long_as_its_slowest_worker():
    rig = play("d-psgd", rounds=4)
    assert [round(r.duration_s, 3) for r in rig.records] == [1.2] * 4
    scaled = play("d-psgd", rounds=4, params=replace(QUICK, time_scale=2.0))
    assert [round(r.duration_s, 3) for r in scaled.records] == [0.6] * 4


def test_plan_is_on_the_disk_before_any_order_leaves():
    rig = Rig(setup_for("dystop"))
    seen = []

    def spy(name, message):
        if isinstance(message, Execute):
            seen.append(message.round in {r.round for r in rows(rig, "rounds")})
        if isinstance(message, ReportAck):
            kept = {(r.round, r.kind) for r in rows(rig, "reports")}
            seen.append((message.round, message.kind) in kept)
        return True

    rig.deliver = spy
    rig.join_all()
    rig.run(60)
    assert seen
    assert all(seen)


def test_one_handle_gives_at_most_one_commit():
    rig = Rig(setup_for("dystop"))
    rig.join_all()
    events = [Heard(f"w{k:02d}", Heartbeat(1, 1)) for k in range(5)]
    actions = rig.machine.handle_all([*events, Tick()], rig.now_s + 4.0)
    assert sum(isinstance(a, Commit) for a in actions) <= 1
    assert sum(isinstance(a, Tell) and isinstance(a.message, Heartbeat) for a in actions) == 5


def test_opening_waits_for_the_quorum_or_for_gather_s():
    rig = Rig(setup_for("dystop"))
    for name in ("w00", "w01", "w02"):
        rig.join(name)
        rig.later(0.5, lambda n=name: rig.beat(n))
    rig.run(4.0)
    assert rig.machine.rounds.open is None
    rig.run(2.0)
    assert rig.machine.rounds.open is not None
    assert rig.machine.rounds.open.view.alive.tolist() == [True, True, True, False, False]


def test_nothing_opens_without_the_server():
    rig = Rig(setup_for("fedavg"))
    for k in range(5):
        rig.join(f"w{k:02d}")
        rig.later(0.5, lambda n=f"w{k:02d}": rig.beat(n))
    rig.run(20)
    assert rows(rig, "rounds") == []
    rig.join("server")
    rig.run(1)
    assert rows(rig, "rounds")


def test_stop_rules():
    assert play(stop=StopRule(100, seconds=3.0)).finished.reason == "3 emulated seconds are over"
    assert play(stop=StopRule(100, loss=0.6)).finished.reason == "target loss reached"
    watched = play(stop=StopRule(100, accuracy=0.4), params=replace(QUICK, observer=True))
    assert watched.finished.reason == "target accuracy reached"
    assert watched.records[3].accuracy == 0.5


def test_records_wait_for_their_score_and_leave_in_order():
    rig = Rig(setup_for("dystop", rounds=9, params=replace(QUICK, observer=True)))
    rig.join_all()
    rig.run(600)
    assert [r.round for r in rig.records] == list(range(1, 10))
    assert [r.accuracy for r in rig.records] == [None] * 3 + [0.5] + [None] * 3 + [0.5, 0.5]
    assert [t["round"] for t in rig.traces] == list(range(1, 10))
    assert rows(rig, "kept")[0].key == "state"
    assert not [k for k in rows(rig, "kept") if k.key.startswith("seen:") and k.key != "seen:9"]


def test_a_silent_observer_holds_nothing_back_for_ever():
    rig = Rig(setup_for("dystop", rounds=5, params=replace(QUICK, observer=True)))
    rig.puppets["observer"].mute = True
    rig.join_all()
    rig.run(200)
    assert rig.finished
    assert [r.accuracy for r in rig.records] == [None] * 5


# Restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("mechanism", ["dystop", "fedavg"])
def test_restart_at_every_commit(mechanism, before):
    whole = play(mechanism, rounds=4)
    for k in range(1, whole.commits + 1, 1 if mechanism == "dystop" else 4):
        rig = Rig(setup_for(mechanism, 5, 4))
        rig.crash_after, rig.crash_before = k, before
        rig.join_all()
        rig.run(120)
        assert rig.finished is not None, k
        check_history(rig, 4)
        assert {o.outcome for o in rows(rig, "orders")} == {"DONE"}, k
        assert rig.machine.epoch == 2


def test_many_restarts():
    rig = Rig(setup_for("dystop", rounds=30))
    rig.join_all()
    for _ in range(15):
        rig.run(0.45)
        rig.restart()
    rig.run(200)
    check_history(rig, 30)
    assert rig.machine.epoch == 16


def test_a_restart_before_the_last_score_opens_no_further_round():
    rig = Rig(setup_for("dystop", rounds=6, params=replace(QUICK, observer=True)))
    rig.puppets["observer"].mute = True
    rig.join_all()
    rig.run(100, until=lambda: 6 in rig.machine.records.waiting)
    rig.restart()
    rig.puppets["observer"].mute = False
    rig.join("observer")
    rig.run(100)
    assert [r.round for r in rig.records] == [1, 2, 3, 4, 5, 6]
    assert [line.round for line in rows(rig, "rounds")] == [1, 2, 3, 4, 5, 6]
    assert rig.finished is not None
    assert rig.finished.reason == "6 rounds are over"


def test_a_restarted_machine_knows_what_the_old_one_knew():
    rig = Rig(setup_for("dystop", rounds=20))
    rig.join_all()
    rig.run(5.05)
    old = rig.machine
    new = CoordinatorMachine(rig.setup, restore(rig.ledger))
    assert new.epoch == old.epoch + 1
    assert new.round == old.round
    for name in ("staleness", "queue", "version"):
        assert np.array_equal(getattr(new.core.books, name), getattr(old.core.books, name))
    assert np.array_equal(new.core.books.pulls.counts, old.core.books.pulls.counts)
    assert new.core.probe.links == old.core.probe.links
    assert np.array_equal(new.core.trained_round, old.core.trained_round)
    a, b = new.rounds.open, old.rounds.open
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        assert (a.t, a.mixed, a.orders) == (b.t, b.mixed, b.orders)


# Members ----------------------------------------------------------------------------------------


def rejected(rig, name):
    return [m.code for n, m in rig.told if n == name and isinstance(m, Reject)]


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("protocol", {"protocol": 9}),
        ("run", {"run": "ee" * 16}),
        ("schema", {"schema": "ee" * 32}),
        ("enrolment", {"data_size": 10**9}),  # B-4
        ("enrolment", {"data_size": 0}),
        ("enrolment", {"data_size": -1}),
        ("enrolment", {"label_counts": (8, 0)}),  # B-6
        ("enrolment", {"label_counts": ()}),
    ],
)
def test_who_is_not_what_was_enrolled_is_refused(code, change):
    rig = Rig(setup_for("dystop"))
    rig.join("w01", **change)
    assert rejected(rig, "w01") == [code]
    assert rig.machine.core.members.get("w01").state == "ENROLLED"
    assert told(rig, JoinOk) == []


def why(rig, name):
    (text,) = (m.text for n, m in rig.told if n == name and isinstance(m, Reject))
    return text


def test_a_new_worker_has_no_run_and_an_old_one_must_have_ours():
    rig = Rig(setup_for("dystop"))
    rig.join("w01", run="")
    assert [m.run for m in told(rig, JoinOk)] == [RUN]
    rig.join("w02", run="ee" * 16)
    said = why(rig, "w02")
    assert f"of run {'ee' * 8}..., this is run {RUN[:16]}..." in said
    assert "another --folder" in said
    assert len(said) < 200


def test_other_labels_are_named():
    rig = Rig(setup_for("dystop"))
    (a, b, *rest) = rig.setup.members[1].label_counts
    rig.join("w01", label_counts=(a, b + 1, *rest))
    size = "samples of label 1, enrolled were"
    assert size in why(rig, "w01")
    rig.join("w02", label_counts=())
    assert "0 label counts, enrolled were" in why(rig, "w02")


def test_a_lie_about_the_data_changes_nothing_b4():
    honest = play(rounds=6)
    rig = Rig(setup_for("dystop", rounds=6))
    rig.join("w00", data_size=10**9)
    rig.join_all()
    rig.run(600)
    assert [r.active_ids for r in rig.records] == [r.active_ids for r in honest.records]
    assert [r.to_json() for r in rig.records] == [r.to_json() for r in honest.records]


def test_unknown_names_and_old_processes_are_refused():
    rig = Rig(setup_for("dystop"))
    rig.puppets["evil"] = replace(rig.puppets["w00"], name="evil")
    rig.join("evil")
    assert rejected(rig, "evil") == ["unknown"]
    rig.join("w00", incarnation=5)
    rig.join("w00", incarnation=4)
    assert rejected(rig, "w00") == ["replaced"]


def test_who_has_not_joined_is_not_heard():
    rig = Rig(setup_for("dystop"))
    rig.hear_from("w00", Report(0, "trained"))
    assert told(rig, Complaint, "w00")[0].code == "not_joined"
    assert rows(rig, "reports") == []


def test_a_newer_coordinator_is_in_charge():
    for said in ("join", "beat", "ack"):
        rig = Rig(setup_for("dystop"))
        rig.join_all()
        if said == "join":
            rig.join("w00", epoch=7)
        elif said == "beat":
            rig.hear_from("w00", Heartbeat(1, 7))
        else:
            rig.hear_from("w00", ExecuteAck(1, "stale_epoch", 7))
        assert (rig.finished.reason, rig.finished.code) == ("a newer coordinator is in charge", 3)
        assert rig.machine.handle(Tick(), rig.now_s + 1) == []


def test_two_coordinators_the_lower_epoch_gives_way():
    rig = Rig(setup_for("dystop", rounds=30))
    rig.join_all()
    rig.run(3)
    old = rig.machine
    rig.restart()
    rig.run(2)
    assert rig.puppets["w00"].epoch == 2
    assert old.handle(Heard("w00", Heartbeat(1, 2)), rig.now_s)[0] == Finish(
        "a newer coordinator is in charge", 3
    )


def test_a_worker_that_dies_is_given_its_order_again():
    rig = Rig(setup_for("d-psgd", rounds=6))
    rig.join_all()
    rig.run(2.0)
    rig.kill("w03")
    rig.run(3.0)
    p = rig.puppets["w03"]
    p.incarnation, p.last_round = 2, max(p.orders, default=0)  # its checkpoint
    rig.join("w03")
    if p.number == -1 or p.last_round:
        rig.train(p, p.last_round, 1)
    rig.run(100)
    check_history(rig, 6)
    assert {o.outcome for o in rows(rig, "orders")} == {"DONE"}


def test_a_dead_worker_fails_at_the_deadline_and_is_left_out():
    rig = Rig(setup_for("d-psgd", rounds=6))
    rig.join_all()
    rig.run(2.0)
    rig.kill("w03")
    rig.run(100)
    assert rig.finished
    outcomes = {(o.round, o.node): o.outcome for o in rows(rig, "orders")}
    assert list(outcomes.values()).count("FAILED") == 1
    assert rig.machine.core.members.get("w03").state == "DEAD"
    failed = next(r for (r, i), x in outcomes.items() if x == "FAILED")
    assert rig.records[failed - 1].duration_s == pytest.approx(10.0, abs=0.2)
    assert [r.alive for r in rig.records][failed:] == [4] * (6 - failed)
    books = read_blob(rows(rig, "rounds")[-1].books)
    assert books.staleness[3] == 1  # grew by the failed round, then stood still
    assert books.version[3] == books.version[0] - (6 - failed) - 1


def test_absence_can_also_age():
    rig = Rig(setup_for("d-psgd", rounds=6, params=replace(QUICK, away="age")))
    rig.join_all()
    rig.run(2.0)
    rig.kill("w03")
    rig.run(100)
    assert read_blob(rows(rig, "rounds")[-1].books).staleness[3] > 1


def test_who_leaves_is_not_waited_for():
    rig = Rig(setup_for("d-psgd", rounds=6))
    rig.join_all()
    rig.run(2.0)
    rig.puppets["w03"].up = False
    rig.hear_from("w03", Leave())
    rig.run(100)
    assert Counter(o.outcome for o in rows(rig, "orders"))["CANCELLED"] == 1
    assert max(r.duration_s for r in rig.records) < 3.0


def test_rosters_name_who_takes_part():
    rig = Rig(setup_for("dystop", rounds=10))
    rig.join_all()
    rig.run(1.0)
    assert [bool(p.address) for p in told(rig, JoinOk, "w03")[0].peers] == [True] * 4 + [False] * 2
    roster = told(rig, Roster, "w00")[-1]
    assert [p.name for p in roster.peers] == [*(member_name(k, 5) for k in range(5)), "observer"]
    assert all(p.address for p in roster.peers if p.name != "observer")
    assert len(told(rig, Roster, "w00")) <= 2


# Reports ----------------------------------------------------------------------------------------


def test_everything_three_times_changes_nothing_c8():
    clean = play(rounds=6)
    rig = Rig(setup_for("dystop", rounds=6))
    once = rig.hear_from

    def thrice(name, message):
        for _ in range(1 if isinstance(message, Heartbeat) else 3):
            once(name, message)

    rig.hear_from = thrice
    rig.join_all()
    rig.run(200)
    assert [r.to_json() for r in rig.records] == [r.to_json() for r in clean.records]
    assert len(rows(rig, "reports")) == len(rows(clean, "reports"))


def test_trained_before_mixed_waits():
    rig = Rig(setup_for("dystop"))
    rig.join_all()
    rig.run(0.5)
    node, order = next((n, o) for n, o in rig.machine.rounds.open.orders.items() if o.train)
    name = member_name(node, 5)
    rig.told.clear()
    rig.hear_from(name, Report(order.round, "trained"))
    assert told(rig, ReportAck) == []
    rig.hear_from(name, Report(order.round, "mixed"))
    rig.hear_from(name, Report(order.round, "trained"))
    assert [a.kind for a in told(rig, ReportAck, name)] == ["mixed", "trained"]


def test_a_failed_order_does_not_reset_staleness():
    rig = Rig(setup_for("d-psgd", rounds=3))
    rig.join_all()
    rig.run(0.5)
    rig.puppets["w02"].mute = True
    rig.hear_from("w02", Report(1, "failed", text="disk"))
    rig.run(1.5)
    books = read_blob(rows(rig, "rounds")[0].books)
    assert books.staleness.tolist() == [0, 0, 1, 0, 0]
    assert books.version.tolist() == [1, 1, 0, 1, 1]
    assert told(rig, Cancel, "w02") == []


def test_late_is_applied_once():
    rig = Rig(setup_for("d-psgd", rounds=40, params=replace(QUICK, timeouts=Timeouts(round_s=3.0))))
    rig.puppets["w02"].pull_s = 30.0
    rig.join_all()
    rig.run(8.0)
    assert told(rig, Cancel, "w02")[0].round == 1
    line = next(o for o in rows(rig, "orders") if (o.round, o.node) == (1, 2))
    assert (line.outcome, line.train) == ("FAILED", 1)
    before = rig.machine.core.books
    assert before.staleness[2] > 1
    order = next(m for n, m in rig.told if n == "w02" and isinstance(m, Execute))
    used = tuple(Used(p.node, 0, 1, 0, "", 100, 0.1) for p in order.stages[0].pulls[:1])
    for _ in range(3):
        rig.hear_from("w02", Report(1, "mixed", used))
    after = rig.machine.core.books
    assert (after.staleness[2], after.version[2]) == (0, before.version[2] + 1)
    assert after.pulls.counts.sum() == before.pulls.counts.sum() + 1
    assert after.wire_bytes == before.wire_bytes + 100
    assert after.t == before.t
    line = next(o for o in rows(rig, "orders") if (o.round, o.node) == (1, 2))
    assert line.outcome == "LATE"
    assert [(x.round, x.node) for x in rows(rig, "lates")] == [(1, 2)]
    assert [r.late for r in rows(rig, "reports") if r.node == 2 and r.kind == "mixed"] == [1]
    assert len([a for a in told(rig, ReportAck, "w02") if a.kind == "mixed"]) == 3
    again = CoordinatorMachine(rig.setup, restore(rig.ledger)).core.books
    assert np.array_equal(again.staleness, after.staleness)
    assert np.array_equal(again.pulls.counts, after.pulls.counts)


def test_reports_of_another_time_have_no_effect_f10():
    rig = Rig(setup_for("dystop", rounds=20))
    rig.join_all()
    rig.run(4.0)
    old = [Heard(f"w{r.node:02d}", r.json) for r in rows(rig, "reports")]
    assert old
    kept, books = len(rows(rig, "reports")), rig.machine.core.books
    for event in old:
        rig.hear_from(event.name, decode(event.message.encode(), "coordinator"))
    rig.hear_from("w00", Report(10_000, "mixed"))
    rig.hear_from("w00", Report(10_000, "trained"))
    assert len(rows(rig, "reports")) == kept
    assert rig.machine.core.books is books


def test_deadline_and_budget():
    rig = Rig(setup_for("d-psgd", rounds=2))
    rig.join_all()
    rig.run(0.3)
    now = rig.machine.rounds.open
    assert now.deadline_s - now.line.opened_s == 10.0
    assert {o.budget_s for o in now.orders.values()} == {5.0}
    capped = Timeouts(round_cap_s=4.0, pull_s=60.0)
    rig = Rig(setup_for("d-psgd", rounds=2, params=replace(QUICK, timeouts=capped)))
    rig.join_all()
    rig.run(0.3)
    now = rig.machine.rounds.open
    assert now.deadline_s - now.line.opened_s == 4.0
    assert {o.budget_s for o in now.orders.values()} == {3.0}


def test_links_are_paced_to_the_world():
    params = replace(QUICK, links="world", time_scale=0.5)
    rig = Rig(setup_for("d-psgd", rounds=2, params=params))
    rig.join_all()
    rig.run(0.3)
    plan, view = rig.machine.rounds.open.plan, rig.machine.rounds.open.view
    want = rig.setup.world.transfer(1, view.now_s, plan.links.dst, plan.links.src, 1.0).seconds
    got = {
        (i, p.node): p.bytes_per_s
        for i, o in rig.machine.rounds.open.orders.items()
        for p in o.stages[0].pulls
    }
    for k, seconds in enumerate(want):
        pair = int(plan.links.dst[k]), int(plan.links.src[k])
        assert got[pair] == pytest.approx(40_000 / (seconds * 0.5))


# Bad peers --------------------------------------------------------------------------------------


def refuse(rig, victim, reporters, code="not_finite"):
    """Let some workers refuse whatever comes from the victim."""
    say = rig.say

    def spoilt(p, report):
        if report.kind == "mixed" and p.name in reporters:
            bad = tuple(Rejected(u.node, u.stage, code) for u in report.used if u.node == victim)
            good = tuple(u for u in report.used if u.node != victim)
            report = replace(report, used=good, rejected=bad)
        say(p, report)

    rig.say = spoilt


def test_a_bad_sender_is_quarantined():
    rig = Rig(setup_for("d-psgd", rounds=40))
    refuse(rig, 2, {"w00", "w01", "w03", "w04"})
    rig.join_all()
    rig.run(60)
    assert rig.finished
    assert rig.machine.core.members.get("w02").state == "QUARANTINED"
    assert told(rig, Reject, "w02")[0].code == "quarantined"
    assert all(p.name != "w02" for p in told(rig, Roster, "w00")[-1].peers)
    assert rig.records[-1].alive == 4
    before = len(told(rig, JoinOk, "w02"))
    rig2 = CoordinatorMachine(rig.setup, restore(rig.ledger))
    assert rig2.core.members.get("w02").state == "QUARANTINED"
    assert len(told(rig, JoinOk, "w02")) == before


def test_one_slanderer_only_loses_its_own_link_b7():
    params = replace(QUICK, timeouts=Timeouts(exclude_s=0.1))
    rig = Rig(setup_for("d-psgd", rounds=120, params=params))
    refuse(rig, 2, {"w01"})
    rig.join_all()
    rig.run(400)
    assert len(rig.machine.core.trust.strikes()) >= 3
    assert rig.machine.core.members.get("w02").state == "LEFT"  # at the end, as everybody
    assert all(r.alive == 5 for r in rig.records)


def test_a_flood_is_not_heard():
    rig = Rig(setup_for("dystop", params=replace(QUICK, limits=Limits(messages_per_s=20))))
    rig.join_all()
    for _ in range(1000):
        rig.hear_from("w00", Heartbeat(1, 1))
    assert len(told(rig, Heartbeat, "w00")) <= 100
    rig.hear_from("w01", Heartbeat(1, 1))
    assert len(told(rig, Heartbeat, "w01")) == 1


# A full disk ------------------------------------------------------------------------------------


def test_a_full_disk_stops_rounds_but_not_heartbeats():
    rig = Rig(setup_for("dystop", rounds=10))
    rig.join_all()
    rig.run(3.0)
    rig.disk_full = True
    open_rounds = len(rows(rig, "rounds"))
    rig.told.clear()
    rig.run(8.0)
    assert told(rig, Execute) == []
    assert told(rig, ReportAck) == []
    assert len(told(rig, Heartbeat)) > 20
    assert len(rows(rig, "rounds")) == open_rounds
    rig.disk_full = False
    rig.run(100)
    assert rig.finished
    check_history(rig, 10)


def test_a_worker_with_a_full_disk_is_left_in_peace():
    rig = Rig(setup_for("d-psgd", rounds=10))
    rig.join_all()
    rig.run(0.5)
    rig.hear_from("w01", Heartbeat(9, 1, disk_full=True))
    rig.beat = lambda name: None
    rig.run(4.0, until=lambda: len(rows(rig, "rounds")) > 1)
    assert rig.machine.rounds.open.view.alive.tolist() == [True, False, True, True, True]


def test_what_the_testbed_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="compensate"):
        setup_for("dystop", remedy=Remedy("compensate"))
    with pytest.raises(ConfigError, match="enrolled once"):
        setup_for("dystop", members=())
    rig = play(rounds=1)
    with pytest.raises(RunFolderError, match="is of run"):
        CoordinatorMachine(replace(rig.setup, run="ee" * 16), restore(rig.ledger))


def test_an_interrupted_run_can_be_taken_up():
    rig = Rig(setup_for("dystop", rounds=10))
    rig.join_all()
    rig.run(3.0)
    rig.machine.interrupt("interrupted")
    rig.run(10.0)
    assert rig.finished == Finish("interrupted", 130)
    again = Rig(rig.setup, rig.ledger)
    again.puppets = rig.puppets
    for p in again.puppets.values():
        p.training, p.queued, p.incarnation = False, None, 2
        if p.name != "observer":
            again.join(p.name)
    for p in again.puppets.values():
        again.later(1.0, lambda n=p.name: again.beat(n))
    again.run(200.0)
    assert again.finished.reason == "10 rounds are over"
    assert [r.round for r in rows(again, "rounds")] == list(range(1, 11))
