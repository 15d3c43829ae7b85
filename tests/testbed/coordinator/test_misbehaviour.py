"""Strikes: the refusals of several receivers exclude a sender, those of one do not."""

from dataclasses import replace

from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.misbehaviour import MAX_STRIKES, Strikes
from dystop.testbed.ledger.tables import restore
from dystop.testbed.params import Guards, Timeouts
from dystop.testbed.protocol.messages import JoinOk, Reject, Rejected, Roster
from support.coordinator_fixtures import QUICK, CoordinatorHarness, sent, setup_for


def test_three_strikes_of_two_reporters():
    strikes = Strikes(Guards())
    assert strikes.model_refused(1, 9, "not_finite", 0.0) == "strike"
    assert strikes.model_refused(2, 9, "norm", 1.0) == "strike"
    assert strikes.model_refused(1, 9, "digest", 2.0) == "quarantine"


def test_false_refusals_of_one_worker_have_no_effect_b7():
    strikes = Strikes(Guards())
    assert {strikes.model_refused(1, 9, "not_finite", float(k)) for k in range(100)} == {"strike"}
    assert len(strikes.all()) <= MAX_STRIKES


def test_one_reporter_cannot_displace_the_strikes_of_others():
    strikes = Strikes(Guards(strikes=3, reporters=2, window_s=1e9))
    strikes.model_refused(2, 9, "norm", 0.0)
    for k in range(10 * MAX_STRIKES):
        strikes.model_refused(1, 9, "norm", 1.0 + k)
    assert {s.reporter for s in strikes.all()} == {1, 2}


def test_timeouts_and_lost_links_are_no_strikes():
    strikes = Strikes(Guards())
    for code in ("unreachable", "timeout", "busy", "no_model", "not_authorised", "wrong_run"):
        assert strikes.model_refused(1, 9, code, 0.0) == ""
    assert strikes.all() == []


def test_a_false_claim_to_the_coordinator_needs_no_second_reporter():
    strikes = Strikes(Guards(window_s=10.0))
    assert [strikes.false_claim(9, at_s) for at_s in (0.0, 9.0, 18.0)] == ["strike"] * 3
    assert Strikes(Guards(window_s=10.0), strikes.all()).false_claim(9, 18.5) == "quarantine"


def test_false_claims_and_refused_models_count_separately():
    strikes = Strikes(Guards())
    assert {strikes.model_refused(1, 9, "norm", float(k)) for k in range(5)} == {"strike"}
    assert strikes.false_claim(9, 5.0) == "strike"
    assert strikes.model_refused(1, 9, "norm", 6.0) == "strike"
    strikes.clear(9)
    assert strikes.all() == []


def test_strikes_expire_and_survive_a_restart():
    strikes = Strikes(Guards(window_s=10.0))
    strikes.model_refused(1, 9, "norm", 0.0)
    strikes.model_refused(2, 9, "norm", 1.0)
    again = Strikes(Guards(window_s=10.0), strikes.all())
    assert strikes.model_refused(1, 9, "norm", 10.5) == "strike"  # the first is too old
    assert again.model_refused(3, 9, "norm", 9.0) == "quarantine"


def refuse_models_of(harness, victim, reporters, code="not_finite"):
    """Make some workers refuse every model of the victim."""
    send_report = harness.send_report

    def with_refusals(p, report):
        if report.kind == "mixed" and p.name in reporters:
            bad = tuple(Rejected(u.node, u.stage, code) for u in report.used if u.node == victim)
            good = tuple(u for u in report.used if u.node != victim)
            report = replace(report, used=good, rejected=bad)
        send_report(p, report)

    harness.send_report = with_refusals


def test_a_bad_sender_is_quarantined():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=40))
    refuse_models_of(harness, 2, {"w00", "w01", "w03", "w04"})
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


def test_one_false_reporter_loses_only_its_own_link_b7():
    params = replace(QUICK, timeouts=Timeouts(exclude_s=0.1))
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=120, params=params))
    refuse_models_of(harness, 2, {"w01"})
    harness.join_all()
    harness.run(400)
    assert len(harness.machine.state.strikes.all()) >= 3
    assert harness.machine.state.members.get("w02").state == "LEFT"  # as all others at the end
    assert all(r.alive == 5 for r in harness.records)
