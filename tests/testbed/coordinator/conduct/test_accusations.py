"""Accusations: nobody is excluded unless the observer has refused the same model, too."""

from dataclasses import replace

import pytest

from dystop.mechanisms import DPSGD
from dystop.testbed.coordinator.conduct.accusations import ANSWER_S
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import MemberDisconnected
from dystop.testbed.ledger.tables import restore
from dystop.testbed.params import Guards, Timeouts
from dystop.testbed.protocol.messages import JoinOk, Judge, Judged, Reject, Rejected, Roster
from support.testbed.coordinator_fixtures import QUICK, CoordinatorHarness, sent, setup_for

OBSERVED = replace(QUICK, observer=True)


def digest_of(node: int, version: int = 1) -> str:
    return f"{node:032d}{version:032d}"


def accused_run(reporters, victims=None, code="norm", **changes) -> CoordinatorHarness:
    """A run in which some workers refuse every model of the victims; None: of everybody."""
    params = {"mechanism": "dystop", "n": 8, "rounds": 400, "params": OBSERVED} | changes
    harness = CoordinatorHarness(setup_for(**params))
    send_report = harness.send_report

    def with_refusals(p, report):
        if report.kind == "mixed" and p.name in reporters:
            bad = [u for u in report.used if victims is None or u.node in victims]
            refused = tuple(
                Rejected(u.node, u.stage, code, version=7, digest=digest_of(u.node, 7)) for u in bad
            )
            good = tuple(u for u in report.used if u not in bad)
            report = replace(report, used=good, rejected=refused)
        send_report(p, report)

    harness.send_report = with_refusals
    harness.join_all()
    return harness


def accepts(question: Judge) -> Judged:
    digest = digest_of(question.node, question.version)
    return Judged(question.node, question.version, "accepted", None, digest)


def refuses(question: Judge) -> Judged:
    digest = digest_of(question.node, question.version)
    return Judged(question.node, question.version, "refused", "not_finite", digest)


def excluded(harness: CoordinatorHarness) -> list[str]:
    return [m.name for m in harness.machine.state.members if m.state == "QUARANTINED"]


def incidents(harness: CoordinatorHarness, kind: str) -> dict[tuple[str, str], str]:
    harness.machine.state.incidents.write_all()
    found = harness.machine.state.incidents.written
    return {(e.member, e.reporter): e.text for e in found if e.kind == kind}


@pytest.mark.parametrize("observed", [True, False])
def test_two_colluders_of_eight_expel_nobody_and_are_named(observed):
    harness = accused_run({"w00", "w01"}, params=replace(QUICK, observer=observed))
    harness.judge = accepts
    harness.run(120.0)
    assert len(harness.records) > 200
    assert excluded(harness) == []
    assert {"w00", "w01"} <= {name for name, _ in incidents(harness, "accusation")}
    assert len(sent(harness, Judge)) <= 6  # before they had accused more than half


def test_a_sender_of_bad_models_is_quarantined_soon():
    harness = accused_run({f"w{k:02d}" for k in range(8) if k != 2}, {2}, "not_finite")
    harness.judge = refuses
    harness.run(60.0, lambda: bool(excluded(harness)))
    began = next(r for r in harness.records)
    assert (excluded(harness), began.round) == (["w02"], 1)
    assert harness.machine.state.at_s < 30.0
    question = sent(harness, Judge)[0]
    assert (question.node, question.version) == (2, 7)
    assert sent(harness, Reject, "w02")[0].code == "quarantined"
    assert "the observer refused version 7" in sent(harness, Reject, "w02")[0].text
    assert ("w02", "") in incidents(harness, "bad_model")
    harness.run(5.0)
    assert all(p.name != "w02" for p in sent(harness, Roster, "w00")[-1].peers)
    joined = len(sent(harness, JoinOk, "w02"))
    again = CoordinatorMachine(harness.setup, restore(harness.ledger))
    assert again.state.members.get("w02").state == "QUARANTINED"
    assert len(sent(harness, JoinOk, "w02")) == joined


def test_without_an_observer_only_the_accusers_stop_pulling():
    harness = accused_run({"w00", "w01", "w03"}, {2}, params=QUICK)
    harness.run(60.0)
    assert (excluded(harness), sent(harness, Judge)) == ([], [])
    assert set(harness.machine.state.observations.excluded) <= {(0, 2), (1, 2), (3, 2)}
    assert ("w02", "w00") in incidents(harness, "bad_model")


@pytest.mark.parametrize(
    "answer",
    [
        lambda question: None,  # it was killed
        lambda question: Judged(question.node, question.version, "not_testable", "no_model"),
        lambda question: Judged(question.node, question.version, "not_testable", "unreachable"),
        lambda question: Judged(question.node, question.version + 1, "refused", "norm"),
        lambda question: Judged(question.node + 1, question.version, "refused", "norm"),
    ],
)
def test_without_a_verdict_nobody_is_excluded(answer):
    params = replace(OBSERVED, timeouts=Timeouts(gather_s=5.0, exclude_s=0.1))
    harness = accused_run({"w00", "w01", "w03"}, {2}, params=params)
    harness.judge = answer
    harness.run(ANSWER_S + 30.0)
    assert excluded(harness) == []
    assert len(sent(harness, Judge)) >= 2  # it is asked again, about a newer model
    assert incidents(harness, "accusation") == {}


def test_an_absent_observer_is_not_asked():
    harness = accused_run({"w00", "w01", "w03"}, {2}, params=QUICK)
    harness.join("observer")
    harness.event(MemberDisconnected("observer"))
    harness.run(60.0)
    assert (excluded(harness), sent(harness, Judge)) == ([], [])


def test_an_answer_nobody_asked_for_has_no_effect():
    harness = accused_run(set())
    harness.run(5.0)
    harness.receive("observer", Judged(2, 7, "refused", "norm", digest_of(2, 7)))
    harness.receive("w01", Judged(2, 7, "refused", "norm", digest_of(2, 7)))
    assert excluded(harness) == []


@pytest.mark.parametrize("code", ["norm", "not_finite", "variance"])
def test_refuted_accusers_are_named_and_cost_no_more_work(code):
    params = replace(OBSERVED, timeouts=Timeouts(gather_s=5.0, exclude_s=0.1))
    harness = accused_run({"w00", "w01"}, {2, 3}, code, params=params)
    harness.judge = accepts
    harness.run(120.0)
    assert excluded(harness) == []
    asked = len(sent(harness, Judge))
    assert asked <= 2 * Guards().strikes
    named = incidents(harness, "accusation")
    assert set(named) == {("w00", ""), ("w01", "")}
    harness.restart()
    assert not harness.machine.state.strikes.is_credible(0, harness.machine.state.at_s)
    harness.run(60.0)
    assert len(sent(harness, Judge)) == asked


def test_two_digests_of_one_version_accuse_both_and_exclude_nobody():
    params = replace(OBSERVED, timeouts=Timeouts(gather_s=5.0, exclude_s=0.1))
    harness = accused_run({"w00", "w01"}, {2}, params=params)
    harness.judge = lambda question: replace(accepts(question), digest="f" * 64)
    harness.run(60.0)
    assert excluded(harness) == []
    named = incidents(harness, "accusation")
    assert ("w02", "") in named
    assert {("w00", ""), ("w01", "")} & set(named)
    assert "another model" in named["w02", ""]
    assert harness.machine.state.strikes.is_credible(0, harness.machine.state.at_s)


@pytest.mark.parametrize("code", ["malformed", "digest", "schema"])
def test_a_refusal_that_the_observer_cannot_repeat_is_not_refuted(code):
    """What was wrong with a header or a transfer does not follow from the digest."""
    params = replace(OBSERVED, timeouts=Timeouts(gather_s=5.0, exclude_s=0.1))
    harness = accused_run({"w00", "w01"}, {2}, code, params=params)
    harness.judge = accepts
    harness.run(60.0)
    assert len(sent(harness, Judge)) > Guards().strikes
    assert harness.machine.state.strikes.all_refuted() == []
    assert ("w02", "") in incidents(harness, "accusation")


@pytest.mark.parametrize(
    "code", ["no_model", "busy", "timeout", "unreachable", "not_authorised", "wrong_run"]
)
def test_a_sender_that_repeats_nothing_for_most_of_the_others_is_quarantined(code):
    """It numbers what it sends to each worker anew, or keeps the observer away."""
    accusers = {f"w{k:02d}" for k in range(8) if k != 2}
    harness = accused_run(accusers, {2}, "not_finite")
    harness.judge = lambda question: Judged(2, question.version, "not_testable", code)
    harness.run(120.0, lambda: bool(excluded(harness)))
    assert excluded(harness) == ["w02"]


def test_an_observer_without_models_to_compare_says_nothing_about_the_sender():
    accusers = {f"w{k:02d}" for k in range(8) if k != 2}
    harness = accused_run(accusers, {2}, "norm")
    harness.judge = lambda question: Judged(2, question.version, "not_testable", "norm")
    harness.run(120.0)
    assert excluded(harness) == []


def test_one_false_reporter_loses_only_its_own_link_b7():
    params = replace(OBSERVED, timeouts=Timeouts(exclude_s=0.1))
    ring = DPSGD(pairs="all")  # by id: w01 pulls from w02
    harness = accused_run({"w01"}, {2}, params=params, mechanism=ring, n=5, rounds=120)
    harness.judge = refuses
    harness.run(400)
    assert len(harness.machine.state.strikes.all()) >= 3
    assert sent(harness, Judge) == []
    assert harness.machine.state.members.get("w02").state == "LEFT"  # as all others at the end
    assert all(r.alive == 5 for r in harness.records)
