"""Who takes part: joining, dying, leaving, and being sent away."""

from collections import Counter
from dataclasses import replace

import pytest

from dystop.testbed.coordinator.machine import REPLACED, CoordinatorMachine, member_name
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
from support.coordinator_fixtures import (
    QUICK,
    RUN,
    CoordinatorHarness,
    check_history,
    play,
    rows,
    sent,
    setup_for,
)

# Members ----------------------------------------------------------------------------------------


def rejected(harness, name):
    return [m.code for n, m in harness.sent if n == name and isinstance(m, Reject)]


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
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join("w01", **change)
    assert rejected(harness, "w01") == [code]
    assert harness.machine.state.members.get("w01").state == "ENROLLED"
    assert sent(harness, JoinOk) == []


def why(harness, name):
    (text,) = (m.text for n, m in harness.sent if n == name and isinstance(m, Reject))
    return text


def test_a_new_worker_has_no_run_and_an_old_one_must_have_ours():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join("w01", run="")
    assert [m.run for m in sent(harness, JoinOk)] == [RUN]
    harness.join("w02", run="ee" * 16)
    reason = why(harness, "w02")
    assert all(fact in reason for fact in ("ee" * 8, RUN[:16], "--folder"))
    assert len(reason) < 200


def test_other_labels_are_named():
    harness = CoordinatorHarness(setup_for("dystop"))
    (a, b, *rest) = harness.setup.members[1].label_counts
    harness.join("w01", label_counts=(a, b + 1, *rest))
    reason = why(harness, "w01")
    assert all(fact in reason for fact in (f"{b + 1} ", "label 1", f" {b};"))
    harness.join("w02", label_counts=())
    reason = why(harness, "w02")
    assert all(fact in reason for fact in ("0 label counts", f" {2 + len(rest)};"))


def test_a_lie_about_the_data_changes_nothing_b4():
    honest = play(rounds=6)
    harness = CoordinatorHarness(setup_for("dystop", rounds=6))
    harness.join("w00", data_size=10**9)
    harness.join_all()
    harness.run(600)
    assert [r.active_ids for r in harness.records] == [r.active_ids for r in honest.records]
    assert [r.to_json() for r in harness.records] == [r.to_json() for r in honest.records]


def test_unknown_names_and_old_processes_are_refused():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.workers["evil"] = replace(harness.workers["w00"], name="evil")
    harness.join("evil")
    assert rejected(harness, "evil") == ["unknown"]
    harness.join("w00", incarnation=5)
    harness.join("w00", incarnation=4)
    assert rejected(harness, "w00") == ["replaced"]


def test_who_has_not_joined_is_not_heard():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.receive("w00", Report(0, "trained"))
    assert sent(harness, Complaint, "w00")[0].code == "not_joined"
    assert rows(harness, "reports") == []


def test_a_newer_coordinator_is_in_charge():
    for said in ("join", "beat", "ack"):
        harness = CoordinatorHarness(setup_for("dystop"))
        harness.join_all()
        harness.ledger.write([MetaLine("epoch", "7")])  # by which workers know it
        if said == "join":
            harness.join("w00", epoch=7)
        elif said == "beat":
            harness.receive("w00", Heartbeat(1, 7))
        else:
            harness.receive("w00", ExecuteAck(1, "stale_epoch", 7))
        assert harness.finished is None  # before the ledger was asked
        harness.run(0.1)
        assert (harness.finished.reason, harness.finished.code) == (REPLACED, 3)
        assert harness.machine.handle(Tick(), harness.now_s + 1) == []


def test_two_coordinators_the_lower_epoch_gives_way():
    harness = CoordinatorHarness(setup_for("dystop", rounds=30))
    harness.join_all()
    harness.run(3)
    old = harness.machine
    harness.restart()
    harness.run(2)
    assert harness.workers["w00"].epoch == 2
    asked = MessageFromMember("w00", Heartbeat(1, 2))
    assert old.handle(asked, harness.now_s)[0] == LookUpEpoch(asked)
    assert old.handle(EpochFound(asked, harness.ledger.epoch()), harness.now_s) == [
        FinishRun(REPLACED, 3)
    ]


def test_a_worker_that_dies_is_given_its_order_again():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(3.0)
    p = harness.workers["w03"]
    p.incarnation, p.last_round = 2, max(p.orders, default=0)  # its checkpoint
    harness.join("w03")
    if p.number == -1 or p.last_round:
        harness.train(p, p.last_round, 1)
    harness.run(100)
    check_history(harness, 6)
    assert {o.outcome for o in rows(harness, "orders")} == {"DONE"}


def test_a_dead_worker_fails_at_the_deadline_and_is_left_out():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(100)
    assert harness.finished
    outcomes = {(o.round, o.node): o.outcome for o in rows(harness, "orders")}
    assert list(outcomes.values()).count("FAILED") == 1
    assert harness.machine.state.members.get("w03").state == "DEAD"
    failed = next(r for (r, i), x in outcomes.items() if x == "FAILED")
    assert harness.records[failed - 1].duration_s == pytest.approx(10.0, abs=0.2)
    assert [r.alive for r in harness.records][failed:] == [4] * (6 - failed)
    control = read_blob(rows(harness, "rounds")[-1].books)
    assert control.staleness[3] == 1  # grew by the failed round, then stood still
    assert control.version[3] == control.version[0] - (6 - failed) - 1


def test_absence_can_also_age():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6, params=replace(QUICK, away="age")))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(100)
    assert read_blob(rows(harness, "rounds")[-1].books).staleness[3] > 1


def test_who_leaves_is_not_waited_for():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.workers["w03"].up = False
    harness.receive("w03", Leave())
    harness.run(100)
    assert Counter(o.outcome for o in rows(harness, "orders"))["CANCELLED"] == 1
    assert max(r.duration_s for r in harness.records) < 3.0


def test_rosters_name_who_takes_part():
    harness = CoordinatorHarness(setup_for("dystop", rounds=10))
    harness.join_all()
    harness.run(1.0)
    assert [bool(p.address) for p in sent(harness, JoinOk, "w03")[0].peers] == [True] * 4 + [
        False
    ] * 2
    roster = sent(harness, Roster, "w00")[-1]
    assert [p.name for p in roster.peers] == [*(member_name(k, 5) for k in range(5)), "observer"]
    assert all(p.address for p in roster.peers if p.name != "observer")
    assert len(sent(harness, Roster, "w00")) <= 2


# Bad peers --------------------------------------------------------------------------------------


def refuse(harness, victim, reporters, code="not_finite"):
    """Let some workers refuse whatever comes from the victim."""
    say = harness.say

    def spoilt(p, report):
        if report.kind == "mixed" and p.name in reporters:
            bad = tuple(Rejected(u.node, u.stage, code) for u in report.used if u.node == victim)
            good = tuple(u for u in report.used if u.node != victim)
            report = replace(report, used=good, rejected=bad)
        say(p, report)

    harness.say = spoilt


def test_a_bad_sender_is_quarantined():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=40))
    refuse(harness, 2, {"w00", "w01", "w03", "w04"})
    harness.join_all()
    harness.run(60)
    assert harness.finished
    assert harness.machine.state.members.get("w02").state == "QUARANTINED"
    assert sent(harness, Reject, "w02")[0].code == "quarantined"
    assert all(p.name != "w02" for p in sent(harness, Roster, "w00")[-1].peers)
    assert harness.records[-1].alive == 4
    before = len(sent(harness, JoinOk, "w02"))
    restarted = CoordinatorMachine(harness.setup, restore(harness.ledger))
    assert restarted.state.members.get("w02").state == "QUARANTINED"
    assert len(sent(harness, JoinOk, "w02")) == before


def test_one_slanderer_only_loses_its_own_link_b7():
    params = replace(QUICK, timeouts=Timeouts(exclude_s=0.1))
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=120, params=params))
    refuse(harness, 2, {"w01"})
    harness.join_all()
    harness.run(400)
    assert len(harness.machine.state.strikes.all()) >= 3
    assert harness.machine.state.members.get("w02").state == "LEFT"  # at the end, as everybody
    assert all(r.alive == 5 for r in harness.records)


def test_a_flood_is_not_heard():
    harness = CoordinatorHarness(
        setup_for("dystop", params=replace(QUICK, limits=Limits(messages_per_s=20)))
    )
    harness.join_all()
    for _ in range(1000):
        harness.receive("w00", Heartbeat(1, 1))
    assert len(sent(harness, Heartbeat, "w00")) <= 100
    harness.receive("w01", Heartbeat(1, 1))
    assert len(sent(harness, Heartbeat, "w01")) == 1
