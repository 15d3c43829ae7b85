"""The offline checker: a correct run has no findings, and every violation is found."""

from dataclasses import replace

import pytest

from dystop.testbed.audit.check import accuracy_near, check_facts, leaks
from dystop.testbed.audit.facts import Closed, LateReport, Planned, RunFacts, StateFacts


def line(kind, **fields):
    return {"kind": kind, **fields}


def published(version, number, digest, **more):
    shape = {"round": 0, "stage": 0, "form": "model"} | more
    return line("published", version=version, number=number, digest=digest, **shape)


def used(round_, node, version, digest):
    return line("used", round=round_, stage=0, node=node, version=version, digest=digest)


def good_facts():
    """Return a run of two workers and three rounds; worker 1 reports round 2 late."""
    both = frozenset({0, 1})
    planned = [
        Planned(1, 1, frozenset({0}), frozenset({0})),
        Planned(2, 1, frozenset({1}), frozenset({1})),
        Planned(3, 2, frozenset({0}), frozenset({0, 1})),
    ]
    steps = [
        Closed(1, frozenset({0}), ((0, 1),), both, StateFacts((0, 1), (0.0, 0.0), {(0, 1): 1})),
        Closed(2, frozenset(), (), both, StateFacts((1, 2), (0.0, 0.0), {(0, 1): 1})),
        LateReport(2, 1, ((1, 0),), StateFacts((1, 0), (0.0, 0.0), {(0, 1): 1, (1, 0): 1})),
        Closed(3, both, (), both, StateFacts((0, 1), (0.0, 0.0), {(0, 1): 1, (1, 0): 1})),
    ]
    zero = [
        line("start", incarnation=1, version=0, number=-1, round=0, epoch=0),
        line("epoch", epoch=1),
        published(1, 0, "a1"),
        line("order", round=1, epoch=1, train=True, state="queued"),
        used(1, 1, 1, "b1"),
        line("applied", round=1, version=1, number=0),
        line("training", number=1, start="s1"),
        line("trained", round=1, number=1, version=2, digest="a2"),
        line("order", round=3, epoch=2, train=True, state="accepted"),
        line("rejected", round=3, stage=0, node=1, code="timeout"),
        line("applied", round=3, version=2, number=1),
        line("training", number=2, start="s2"),
        line("sample", rss_bytes=10, descriptors=20, threads=5),
    ]
    one = [
        line("epoch", epoch=1),
        published(1, 0, "b1"),
        line("order", round=2, epoch=1, train=True, state="accepted"),
        used(2, 0, 1, "a1"),
        line("applied", round=2, version=1, number=0),
        line("training", number=1, start="t1"),
        line("training", number=1, start="t1"),
        line("order", round=3, epoch=2, train=False, state="accepted"),
        line("applied", round=3, version=2, number=0),
    ]
    outcomes = [(1, 0, "DONE"), (2, 1, "LATE"), (3, 0, "DONE"), (3, 1, "DONE")]
    return RunFacts(2, 3.0, planned, outcomes, steps, {0: zero, 1: one})


def rules(facts):
    return {finding.rule for finding in check_facts(facts)}


def with_line(facts, node, *lines):
    return replace(facts, event_logs={**facts.event_logs, node: [*facts.event_logs[node], *lines]})


def without(facts, node, kind):
    kept = [entry for entry in facts.event_logs[node] if entry["kind"] != kind]
    return replace(facts, event_logs={**facts.event_logs, node: kept})


def test_a_correct_run_has_no_findings():
    assert check_facts(good_facts()) == []


@pytest.mark.parametrize("order", [[0, 0, 1, 2, 3], [0, 2, 3], [1, 0, 2, 3]])
def test_i1_rounds_closed_twice_skipped_or_out_of_order(order):
    facts = good_facts()
    assert "I1" in rules(replace(facts, steps=[facts.steps[k] for k in order]))


def test_i1_a_round_planned_but_never_closed():
    facts = good_facts()
    short = replace(facts, steps=facts.steps[:-1], outcomes=facts.outcomes[:2])
    assert "I1" in rules(short)
    assert not rules(replace(short, unfinished=frozenset({3})))


@pytest.mark.parametrize(
    "outcomes",
    [
        [(1, 0, "DONE"), (2, 1, "FAILED"), (2, 1, "LATE"), (3, 0, "DONE"), (3, 1, "DONE")],
        [(1, 0, "DONE"), (2, 1, "LATE"), (3, 0, "DONE")],
        [(1, 0, "DONE"), (1, 1, "DONE"), (2, 1, "LATE"), (3, 0, "DONE"), (3, 1, "DONE")],
        [(1, 0, "done"), (2, 1, "LATE"), (3, 0, "DONE"), (3, 1, "DONE")],
    ],
)
def test_i2_two_outcomes_none_or_one_without_an_order(outcomes):
    assert "I2" in rules(replace(good_facts(), outcomes=outcomes))


def test_i3_done_but_never_applied():
    assert rules(without(good_facts(), 0, "applied")) == {"I3"}


def test_i3_applied_but_failed():
    facts = good_facts()
    failed = [(1, 0, "DONE"), (2, 1, "FAILED"), (3, 0, "DONE"), (3, 1, "DONE")]
    facts = replace(facts, outcomes=failed)
    assert rules(facts) == {"I3"}
    assert not rules(replace(facts, unacknowledged={1: frozenset({2})}))


@pytest.mark.parametrize(
    "extra",
    [
        line("training", number=1, start="elsewhere"),
        line("trained", round=1, number=2, version=3, digest="a3"),
    ],
)
def test_i3_applied_twice_shows_in_the_trainings(extra):
    assert "I3" in rules(with_line(good_facts(), 0, extra))


@pytest.mark.parametrize("bad", [used(1, 1, 1, "forged"), used(1, 1, 7, "b1"), used(1, 5, 1, "b1")])
def test_i4_used_but_never_published(bad):
    assert rules(with_line(good_facts(), 0, bad)) == {"I4"}


def test_i4_used_and_refused():
    refused = line("rejected", round=1, stage=0, node=1, code="norm")
    assert rules(with_line(good_facts(), 0, refused)) == {"I4"}


@pytest.mark.parametrize(
    "stored",
    [
        StateFacts((0, 2), (0.0, 0.0), {(0, 1): 1}),
        StateFacts((0, 1), (0.0, 0.5), {(0, 1): 1}),
        StateFacts((0, 1), (0.0, 0.0), {(0, 1): 2}),
        StateFacts((0, 1), (0.0, 0.0), {}),
    ],
)
def test_i5_a_wrong_control_state(stored):
    facts = good_facts()
    steps = [
        replace(facts.steps[0], state=stored),
        *(replace(s, state=None) for s in facts.steps[1:]),
    ]
    assert rules(replace(facts, steps=steps)) == {"I5"}


def test_i5_queues_grow_with_staleness_beyond_the_bound():
    facts = good_facts()
    steps = [replace(s, state=None) for s in facts.steps]
    last = StateFacts((0, 1), (1.0, 1.0), {(0, 1): 1, (1, 0): 1})
    steps[-1] = replace(steps[-1], state=last)
    assert rules(replace(facts, steps=steps, bound=0.0)) == set()


def test_i5_the_staleness_of_absent_workers_stays_the_same():
    facts = good_facts()
    facts = replace(facts, steps=[replace(s, state=None) for s in facts.steps[:2]])
    facts = replace(facts, planned=facts.planned[:2], outcomes=[(1, 0, "DONE"), (2, 1, "FAILED")])
    facts = replace(facts, event_logs={})
    away = replace(
        facts.steps[1],
        present=frozenset({0}),
        state=StateFacts((1, 1), (0.0, 0.0), {(0, 1): 1}),
    )
    facts = replace(facts, steps=[facts.steps[0], away])
    assert "I5" not in rules(facts)
    assert "I5" in rules(replace(facts, freeze=False))


@pytest.mark.parametrize(
    "bad",
    [
        [published(1, 0, "other")],
        [published(2, 3, "x"), published(3, 2, "y")],
        [line("trained", round=3, number=2, version=2, digest="z")],
    ],
)
def test_i6_versions_that_repeat_or_fall(bad):
    assert rules(with_line(good_facts(), 0, *bad)) == {"I6"}


def test_i6_a_training_that_failed_publishes_nothing():
    failed = line("trained", round=3, number=2, version=2, digest="z", text="not finite")
    assert rules(with_line(good_facts(), 0, failed)) == set()


def test_i7_an_order_of_a_lower_epoch():
    late = line("order", round=9, epoch=1, train=True, state="accepted")
    assert rules(with_line(good_facts(), 0, late)) == {"I7"}
    assert not rules(with_line(good_facts(), 0, {**late, "state": "stale_epoch"}))


@pytest.mark.parametrize("what", [{"descriptors": 257}, {"threads": 65}])
def test_i8_too_many_descriptors_or_threads(what):
    assert rules(with_line(good_facts(), 0, line("sample", **what))) == {"I8"}


def test_i10_accuracy_too_far_below():
    assert accuracy_near(0.90, 0.905, 0.01) == []
    assert [f.rule for f in accuracy_near(0.88, 0.905, 0.01)] == ["I10"]


def test_i9_private_keys_and_canaries_are_found_outside_key_files(tmp_path):
    key = b"-----BEGIN EC PRIVATE KEY-----\nabc"
    (tmp_path / "w00").mkdir()
    (tmp_path / "w00" / "w00.key").write_bytes(key)
    (tmp_path / "w00" / "node.log").write_bytes(b"x" * (2**20 - 10) + key)
    (tmp_path / "trace.jsonl").write_text("the token is canary-123")
    found = [(path.name, what) for path, what in leaks(tmp_path, ["canary-123", ""])]
    assert found == [("trace.jsonl", "a given secret"), ("node.log", "a private key")]


def test_i9_the_holes_of_a_sparse_file_are_skipped(tmp_path):
    with (tmp_path / "node.log").open("wb") as file:
        file.truncate(2**42)
        file.seek(2**41)
        file.write(b"the token is canary-123")
    assert [what for _, what in leaks(tmp_path, ["canary-123"])] == ["a given secret"]
