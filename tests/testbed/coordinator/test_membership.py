"""Who takes part: joining, dying, leaving, and being sent away."""

from collections import Counter
from dataclasses import replace

import pytest

from dystop.testbed.coordinator.machine import CoordinatorMachine, member_name
from dystop.testbed.events import EpochFound, FinishRun, LookUpEpoch, MessageFromMember, Tick
from dystop.testbed.ledger.tables import MetaLine, read_blob, restore
from dystop.testbed.params import Limits, Timeouts
from dystop.testbed.protocol.messages import (
    Complaint,
    ExecuteAck,
    Heartbeat,
    JoinOk,
    Leave,
    Reject,
    Rejected,
    Report,
    Roster,
)
from support.coordinator_fixtures import QUICK, RUN, Rig, check_history, play, rows, setup_for, told

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
    assert rig.machine.state.members.get("w01").state == "ENROLLED"
    assert told(rig, JoinOk) == []


def why(rig, name):
    (text,) = (m.text for n, m in rig.told if n == name and isinstance(m, Reject))
    return text


def test_a_new_worker_has_no_run_and_an_old_one_must_have_ours():
    rig = Rig(setup_for("dystop"))
    rig.join("w01", run="")
    assert [m.run for m in told(rig, JoinOk)] == [RUN]
    rig.join("w02", run="ee" * 16)
    reason = why(rig, "w02")
    assert all(fact in reason for fact in ("ee" * 8, RUN[:16], "--folder"))
    assert len(reason) < 200


def test_other_labels_are_named():
    rig = Rig(setup_for("dystop"))
    (a, b, *rest) = rig.setup.members[1].label_counts
    rig.join("w01", label_counts=(a, b + 1, *rest))
    reason = why(rig, "w01")
    assert all(fact in reason for fact in (f"{b + 1} ", "label 1", f" {b};"))
    rig.join("w02", label_counts=())
    reason = why(rig, "w02")
    assert all(fact in reason for fact in ("0 label counts", f" {2 + len(rest)};"))


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
        rig.ledger.write([MetaLine("epoch", "7")])  # by which workers know it
        if said == "join":
            rig.join("w00", epoch=7)
        elif said == "beat":
            rig.hear_from("w00", Heartbeat(1, 7))
        else:
            rig.hear_from("w00", ExecuteAck(1, "stale_epoch", 7))
        assert rig.finished is None  # before the ledger was asked
        rig.run(0.1)
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
    asked = MessageFromMember("w00", Heartbeat(1, 2))
    assert old.handle(asked, rig.now_s)[0] == LookUpEpoch(asked)
    assert old.handle(EpochFound(asked, rig.ledger.epoch()), rig.now_s) == [
        FinishRun("a newer coordinator is in charge", 3)
    ]


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
    assert rig.machine.state.members.get("w03").state == "DEAD"
    failed = next(r for (r, i), x in outcomes.items() if x == "FAILED")
    assert rig.records[failed - 1].duration_s == pytest.approx(10.0, abs=0.2)
    assert [r.alive for r in rig.records][failed:] == [4] * (6 - failed)
    control = read_blob(rows(rig, "rounds")[-1].books)
    assert control.staleness[3] == 1  # grew by the failed round, then stood still
    assert control.version[3] == control.version[0] - (6 - failed) - 1


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
    assert rig.machine.state.members.get("w02").state == "QUARANTINED"
    assert told(rig, Reject, "w02")[0].code == "quarantined"
    assert all(p.name != "w02" for p in told(rig, Roster, "w00")[-1].peers)
    assert rig.records[-1].alive == 4
    before = len(told(rig, JoinOk, "w02"))
    restarted = CoordinatorMachine(rig.setup, restore(rig.ledger))
    assert restarted.state.members.get("w02").state == "QUARANTINED"
    assert len(told(rig, JoinOk, "w02")) == before


def test_one_slanderer_only_loses_its_own_link_b7():
    params = replace(QUICK, timeouts=Timeouts(exclude_s=0.1))
    rig = Rig(setup_for("d-psgd", rounds=120, params=params))
    refuse(rig, 2, {"w01"})
    rig.join_all()
    rig.run(400)
    assert len(rig.machine.state.strikes.all()) >= 3
    assert rig.machine.state.members.get("w02").state == "LEFT"  # at the end, as everybody
    assert all(r.alive == 5 for r in rig.records)


def test_a_flood_is_not_heard():
    rig = Rig(setup_for("dystop", params=replace(QUICK, limits=Limits(messages_per_s=20))))
    rig.join_all()
    for _ in range(1000):
        rig.hear_from("w00", Heartbeat(1, 1))
    assert len(told(rig, Heartbeat, "w00")) <= 100
    rig.hear_from("w01", Heartbeat(1, 1))
    assert len(told(rig, Heartbeat, "w01")) == 1
