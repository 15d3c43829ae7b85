"""Messages that cannot be true: refused, named, and never the end of the coordinator."""

from dataclasses import replace

import pytest

from dystop.control.stopping import Stop
from dystop.testbed.coordinator.message_check import implausible
from dystop.testbed.protocol.messages import Mail, Reject, Rejected, Report, Scored, Used
from support.strategies import random_fleet
from support.testbed.coordinator_fixtures import (
    QUICK,
    CoordinatorHarness,
    check_history,
    rows,
    sent,
    setup_for,
)

HUGE = 2**63 - 1
BAD_MAIL = {
    "overflow": (Mail(0, HUGE, 1),),
    "future": (Mail(0, 1, HUGE),),
    "itself": (Mail(4, 1, 1),),
    "nobody": (Mail(77, 1, 1),),
    "twice": (Mail(0, 1, 1), Mail(0, 0, 1)),
}
PUSHING = ("sa-adfl", "asyng", "dystop", "fedasync")


def started(mechanism="dystop", rounds=8):
    harness = CoordinatorHarness(setup_for(mechanism, 5, rounds))
    harness.join_all()
    return harness


def incidents(harness):
    harness.machine.state.incidents.write_all()
    return {(e.member, e.kind) for e in harness.machine.state.incidents.written}


@pytest.mark.parametrize("mechanism", PUSHING)
@pytest.mark.parametrize("mail", BAD_MAIL.values(), ids=BAD_MAIL)
def test_a_join_with_impossible_mail_is_refused_and_the_run_goes_on(mechanism, mail):
    harness = started(mechanism)
    harness.run(60.0, until=lambda: harness.machine.round >= 3)
    harness.kill("w04")
    harness.join("w04", mail=mail, incarnation=2)
    assert ("w04", "bad_message") in incidents(harness)
    assert sent(harness, Reject, "w04")[-1].code == "implausible"
    harness.workers["w04"].up = False
    harness.run(600.0)
    check_history(harness, 8)


@pytest.mark.parametrize("field", ["number", "last_round", "version"])
def test_a_join_far_ahead_is_refused(field):
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join("w00", **{field: HUGE})
    assert sent(harness, Reject, "w00")[-1].code == "implausible"
    assert ("w00", "bad_message") in incidents(harness)


def test_a_member_ahead_of_a_restored_ledger_is_welcome():
    harness = CoordinatorHarness(setup_for("sa-adfl", 5, 4))
    harness.join_all()
    harness.join("w00", number=300, last_round=3, version=9000, mail=(Mail(1, 290, 299),))
    assert not sent(harness, Reject)
    assert harness.machine.state.observations.mail == {}  # unknown to the ledger: not planned with
    harness.run(600.0)
    assert harness.machine.state.strikes.all() == []


def test_a_loss_below_the_least_one_of_the_task_is_a_strike():
    harness = CoordinatorHarness(
        setup_for("d-psgd", 5, 400, least_loss=0.0, stop=Stop(400, loss=0.1))
    )
    lying(harness, "w02", lambda report: replace(report, loss=-1e40 if report.loss else None))
    harness.join_all()
    harness.run(60.0)
    assert harness.machine.state.members.get("w02").state == "QUARANTINED"
    assert ("w02", "bad_message") in incidents(harness)
    assert harness.finished is None
    assert min(r.loss for r in harness.records if r.loss is not None) == 0.5


def test_rounding_may_take_a_loss_a_little_below_the_least_one():
    harness = CoordinatorHarness(setup_for("d-psgd", 5, 5, least_loss=0.0))
    lying(harness, "w02", lambda report: replace(report, loss=-1e-7 if report.loss else None))
    harness.join_all()
    harness.run(600.0)
    check_history(harness, 5)
    assert harness.machine.state.strikes.all() == []


@pytest.mark.parametrize("observer", [True, False])
@pytest.mark.parametrize("mechanism", ["d-psgd", "ad-psgd", "dystop"])
def test_one_low_loss_of_a_task_without_a_least_one_ends_no_run(mechanism, observer):
    """The observer's loss counts, which is 1.0 here, or else the median, which is 0.5."""
    params = replace(QUICK, observer=observer)
    setup = setup_for(mechanism, 5, 300, params=params, stop=Stop(300, loss=0.4))
    harness = CoordinatorHarness(setup)
    lying(harness, "w02", lambda report: replace(report, loss=-1e40 if report.loss else None))
    harness.join_all()
    harness.run(60.0)
    assert harness.finished is None
    assert len(harness.records) > 20
    honest = CoordinatorHarness(replace(setup, stop=Stop(300, loss=1.2)))
    honest.join_all()
    honest.run(60.0)
    assert honest.finished.reason == "target loss reached"


def lying(harness, name, change):
    """Let a worker change its reports."""
    honest = harness.send_report

    def send(p, report):
        honest(p, change(report) if p.name == name else report)

    harness.send_report = send


def padded(report):
    if report.kind != "mixed":
        return report
    extra = [Used(k, 9, 1, 1, "d" * 64, 10, 0.1) for k in range(200)]
    return replace(report, used=(*report.used, *extra))


def altered(**changes):
    return lambda report: replace(
        report,
        used=tuple(replace(u, **changes) for u in report.used),
    )


LIES = {
    "padded": padded,
    "twice": lambda r: replace(r, used=(*r.used, *r.used[:1])),
    "used and rejected": lambda r: replace(
        r, rejected=tuple(Rejected(u.node, u.stage, "norm") for u in r.used)
    ),
    "number": altered(number=HUGE),
    "version": altered(version=HUGE),
    "bytes": altered(bytes=HUGE),
    "distance": altered(distance=1e300),
    "loss": lambda r: replace(r, loss=1e300),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("mechanism", ["dystop", "sa-adfl", "asyng"])
def test_a_report_holds_only_what_its_order_named(mechanism, lie):
    harness = started(mechanism, 6)
    lying(harness, "w02", lie)
    harness.run(1200.0)
    assert harness.finished
    assert [r.round for r in harness.records] == list(range(1, 7))
    assert ("w02", "bad_message") in incidents(harness)
    assert max(len(r.json) for r in rows(harness, "reports")) < 4000
    others = [m for m in harness.machine.state.members if m.name != "w02"]
    assert all(m.state != "QUARANTINED" for m in others)


def test_estimates_stay_finite_whatever_is_claimed():
    harness = started("dystop", 60)
    lying(harness, "w02", altered(seconds=1e9, bytes=1))
    harness.run(6000.0)
    assert harness.finished
    links = harness.machine.state.observations.links
    assert 0 < min(links.values()) <= max(links.values()) <= 1e9


def test_a_score_that_cannot_be_true_is_refused():
    harness = started()
    harness.join("observer")
    harness.receive("observer", Scored(1, 1e300, 0.1, 0.5, None, None, 0))
    assert ("observer", "bad_message") in incidents(harness)


@pytest.mark.parametrize(
    ("accuracy", "loss", "what"),
    [
        ((0.5,), (1.0,), "results of"),
        ((0.5,) * 4, (1.0,) * 3, "results of"),
        ((0.5, 1.5, None, 0.5), (1.0,) * 4, "above 1"),
        ((0.5, 0.5, None, 0.5), (1.0, None, 1e60, 1.0), "large"),
    ],
)
def test_results_of_single_workers_that_cannot_be_true_are_refused(accuracy, loss, what):
    fleet = random_fleet(0, 4)
    score = Scored(1, 0.5, 0.1, 0.5, None, None, 0)
    good = replace(score, worker_accuracy=(0.5, None, 0.0, 1.0), worker_loss=(1.0, None, 2.0, 3.0))
    assert not implausible(fleet, 1, 4, score, None)
    assert not implausible(fleet, 1, 4, good, None)
    bad = replace(score, worker_accuracy=accuracy, worker_loss=loss)
    assert what in implausible(fleet, 1, 4, bad, None)


def test_an_unexpected_error_costs_one_member_a_strike_and_nobody_a_round(monkeypatch):
    harness = started(rounds=8)
    harness.run(60.0, until=lambda: harness.machine.round >= 3)
    rounds = type(harness.machine.rounds)
    honest, broken = rounds.apply_report, []

    def apply(self, node, report):
        effect = honest(self, node, report)  # the state is half changed when the error comes
        if node == 3 and len(broken) < 2:
            broken.append(report)
            raise ZeroDivisionError("a defect")
        return effect

    monkeypatch.setattr(rounds, "apply_report", apply)
    harness.run(600.0)
    assert len(broken) == 2
    check_history(harness, 8)
    assert len(harness.machine.state.strikes.all()) == 2
    assert ("w03", "bad_message") in incidents(harness)


def test_a_member_whose_messages_keep_failing_is_excluded(monkeypatch):
    harness = started(rounds=8)
    rounds = type(harness.machine.rounds)
    honest = rounds.apply_report

    def apply(self, node, report):
        if node == 3:
            raise ZeroDivisionError("a defect")
        return honest(self, node, report)

    monkeypatch.setattr(rounds, "apply_report", apply)
    harness.run(1200.0)
    assert harness.finished
    assert harness.machine.state.members.get("w03").state == "QUARANTINED"


def test_a_transfer_has_a_largest_size():
    fleet = random_fleet(3, 4)
    most = 1000 * fleet.model_bytes + 2**20
    for size, is_possible in [(most, True), (most + 1, False)]:
        for entry in (Used(1, 0, 1, 1, "ab", size, 1.0), Rejected(1, 0, "norm", bytes=size)):
            field = "used" if isinstance(entry, Used) else "rejected"
            report = Report(1, "mixed", **{field: (entry,)})
            assert (implausible(fleet, 1, 0, report, None) == "") == is_possible
