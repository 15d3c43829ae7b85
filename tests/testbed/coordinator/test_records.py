"""Records: when they leave, with which score, and what comes after them."""

from dataclasses import replace

import pytest

from dystop.control.stopping import Evaluate as EvaluateRule
from dystop.control.stopping import Stop as StopRule
from dystop.testbed.ledger.tables import RoundLine
from dystop.testbed.protocol.messages import Evaluate, Leave, NotTestable, Scored
from support.testbed.coordinator_fixtures import QUICK, CoordinatorHarness, rows, setup_for

WATCHED = replace(QUICK, observer=True)
WAIT_S = 30.0
SLACK_S = 1.0  # a tick, and the commit before


class ObservedHarness(CoordinatorHarness):
    """A coordinator with an observer that tests one round after another, each in `seconds`."""

    def __init__(self, seconds=0.5, rounds=60, every=2, **changes):
        changes = {"params": WATCHED, "evaluate": EvaluateRule(every_rounds=every), **changes}
        super().__init__(setup_for("dystop", rounds=rounds, **changes))
        self.seconds, self.free_s = seconds, 0.0
        for worker in self.workers.values():
            worker.step_s = 4.0  # about one round a second
        self.silent_rounds = set()  # that the observer never answers
        self.closed_s, self.recorded_s, self.tests = {}, {}, []

    def deliver_to(self, name, message):
        if not isinstance(message, Evaluate):
            super().deliver_to(name, message)
            return
        observer = self.workers[name]
        self.tests.append(message.round)
        if observer.mute or message.round in self.silent_rounds:
            return
        self.free_s = max(self.now_s, self.free_s) + self.seconds
        self.later(self.free_s - self.now_s, lambda: self.answer(observer, message))

    def answer(self, observer, message):
        if observer.up:
            self.receive(observer.name, self.score(message))

    def score(self, message):
        return Scored(message.round, 0.5, 0.1, 0.6, 1.0, 1.1, 0)

    def commit(self, action):
        for line in action.entries:
            if isinstance(line, RoundLine) and line.closed_s is not None:
                self.closed_s.setdefault(line.round, self.now_s)
        return super().commit(action)

    def execute_actions(self, actions):
        super().execute_actions(actions)
        for record in self.records[len(self.recorded_s) :]:
            self.recorded_s.setdefault(record.round, self.now_s)

    def play(self, seconds=600.0, until=lambda: False):
        self.join_all()
        self.run(seconds, until)
        return self

    @property
    def longest_lag_s(self):
        """From the close of a round to its record; a round without a record counts until now."""
        recorded = self.recorded_s
        return max(recorded.get(k, self.now_s) - at_s for k, at_s in self.closed_s.items())


def test_one_unanswered_test_withholds_no_record_longer_than_its_own_wait():
    harness = ObservedHarness(rounds=180)
    harness.silent_rounds = {10}
    harness.play()
    assert harness.finished
    assert harness.longest_lag_s < WAIT_S + SLACK_S
    assert [r.round for r in harness.records] == list(range(1, 181))
    assert harness.records[9].no_score == "late"
    assert harness.records[-1].accuracy == 0.5  # after a while the observer is asked again


def test_records_follow_the_rounds_if_the_observer_is_slower_than_they_are():
    harness = ObservedHarness(seconds=10.0, rounds=300).play(150.0)
    assert len(harness.closed_s) > 100
    assert harness.longest_lag_s < WAIT_S + SLACK_S
    due = [r for r in harness.records if r.round % 2 == 0]
    assert {r.no_score for r in due} == {None, "skipped"}
    tested = [r.round for r in due if r.accuracy is not None]
    assert tested == harness.tests[: len(tested)]
    assert len(tested) > 10
    assert not any(r.no_score for r in harness.records if r.round % 2)


def test_the_observer_has_one_evaluation_at_a_time():
    harness = ObservedHarness(seconds=10.0, rounds=300)
    harness.join_all()
    for _ in range(50):
        harness.run(1.0)
        assert len(harness.tests) <= 1 + (harness.now_s - 100.0) / 10.0
        assert len(harness.machine.records.evaluations.due) <= 2


def test_not_testable_lets_the_record_leave_at_once():
    class Blind(ObservedHarness):
        def score(self, message):
            return NotTestable(message.round, "none of 5 models arrived")

    harness = Blind().play()
    assert harness.longest_lag_s < 2.0
    reasons = {r.no_score for r in harness.records if r.round % 2 == 0}
    assert reasons <= {"not testable", "skipped"}
    (incident,) = harness.machine.state.incidents.written
    assert (incident.member, incident.kind) == ("observer", "not_testable")


def test_a_score_that_comes_after_its_record_is_published_on_its_own():
    harness = ObservedHarness(seconds=40.0).play()
    assert harness.finished
    late = {r.round: r for r in harness.late_scores}
    assert late
    assert set(late) == {r.round for r in harness.records if r.no_score == "late"}
    assert harness.records[-1].round in late  # the run ends after its last score
    assert all(r.accuracy == 0.5 and r.no_score is None for r in late.values())
    lines = {line.round: line for line in rows(harness, "records")}
    assert all(lines[k].published and lines[k].score for k in late)
    assert not [k for k in rows(harness, "kept") if k.key.startswith(("due:", "late:"))]


@pytest.mark.parametrize("seconds", [0.5, 40.0], ids=["in time", "late"])
def test_the_accuracy_that_ends_a_run_may_come_late(seconds):
    stop = StopRule(1000, accuracy=0.4)
    harness = ObservedHarness(seconds=seconds, stop=stop).play()
    assert harness.finished.reason == "target accuracy reached"
    assert len(harness.records) < 100


def test_a_reached_target_survives_a_restart():
    stop = StopRule(1000, accuracy=0.4)
    harness = ObservedHarness(stop=stop)
    harness.play(until=lambda: harness.machine.records.stop_reason)
    assert not harness.finished
    count = len(harness.closed_s)
    harness.restart()
    harness.run(100)
    assert harness.finished.reason == "target accuracy reached"
    assert len(harness.closed_s) <= count + 1


@pytest.mark.parametrize("dies", ["coordinator", "observer"])
def test_after_a_restart_only_rounds_that_were_due_are_tested(dies):
    harness = ObservedHarness(seconds=5.0, rounds=100, every=10)
    due = harness.machine.records.evaluations.due
    harness.play(until=lambda: len(harness.machine.records.held) > 3)
    (round_,) = due
    harness.tests.clear()
    if dies == "coordinator":
        harness.restart()
    else:
        harness.kill("observer")
        harness.run(3)
        harness.workers["observer"].incarnation += 1
        harness.join("observer")
    harness.run(0.1)
    assert harness.tests == [round_]
    harness.run(600)
    assert harness.finished
    assert all(round_ % 10 == 0 for round_ in harness.tests)
    assert [r.round for r in harness.records] == list(range(1, 101))
    assert harness.longest_lag_s < WAIT_S + SLACK_S


def test_records_do_not_wait_for_an_observer_that_has_left():
    harness = ObservedHarness()
    harness.play(until=lambda: len(harness.records) >= 4)
    harness.receive("observer", Leave("over"))
    harness.workers["observer"].up = False
    before = len(harness.recorded_s)
    harness.run(600)
    assert harness.finished
    lags = [harness.recorded_s[k] - harness.closed_s[k] for k in range(before + 2, 61)]
    assert max(lags) < SLACK_S
    assert {r.no_score for r in harness.records[before + 2 :]} == {None, "no observer"}


def test_a_score_of_few_models_says_so():
    class Partial(ObservedHarness):
        def score(self, message):
            missing = message.nodes[2:]
            return replace(super().score(message), missing=missing, tested=2)

    harness = Partial(rounds=4).play()
    assert harness.records[-1].get("tested") == 2
    named = {entry.member for entry in harness.machine.state.incidents.written}
    assert named == {"w02", "w03", "w04"}


@pytest.mark.parametrize("before", [False, True], ids=["after the commit", "before the commit"])
def test_a_crash_at_any_commit_loses_no_late_score(before):
    calm = ObservedHarness(seconds=40.0, rounds=12, every=12)
    calm.play()
    (late,) = calm.late_scores
    for crash in range(calm.commits - 12, calm.commits + 1):
        harness = ObservedHarness(seconds=40.0, rounds=12, every=12)
        harness.crash_after, harness.crash_before = crash, before
        harness.play()
        assert harness.finished
        assert {r.round for r in harness.late_scores} | {
            r.round for r in harness.records if r.accuracy is not None
        } == {late.round}
