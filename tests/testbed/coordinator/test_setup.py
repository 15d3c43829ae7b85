"""The checks of a join against the enrolment: protocol, run, schema and data."""

from dataclasses import replace

import pytest

from dystop.testbed.events import MessageFromMember
from dystop.testbed.protocol.messages import JoinOk, Reject
from support.testbed.coordinator_fixtures import RUN, CoordinatorHarness, play, sent, setup_for


def refusal_codes(harness, name):
    return [m.code for n, m in harness.sent if n == name and isinstance(m, Reject)]


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("format", {"format": 9}),
        ("run", {"run": "ee" * 16}),
        ("schema", {"schema": "ee" * 32}),
        ("enrolment", {"data_size": 10**9}),  # B-4
        ("enrolment", {"data_size": 0}),
        ("enrolment", {"data_size": -1}),
        ("enrolment", {"label_counts": (8, 0)}),  # B-6
        ("enrolment", {"label_counts": ()}),
    ],
)
def test_a_join_that_differs_from_the_enrolment_is_refused(code, change):
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join("w01", **change)
    assert refusal_codes(harness, "w01") == [code]
    assert harness.machine.state.members.get("w01").state == "ENROLLED"
    assert sent(harness, JoinOk) == []


def refusal_text(harness, name):
    (text,) = (m.text for n, m in harness.sent if n == name and isinstance(m, Reject))
    return text


def test_a_worker_of_another_run_is_refused():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join("w01", run="")
    assert [m.run for m in sent(harness, JoinOk)] == [RUN]
    harness.join("w02", run="ee" * 16)
    reason = refusal_text(harness, "w02")
    assert all(fact in reason for fact in ("ee" * 8, RUN[:16], "--folder"))
    assert len(reason) < 200


def test_the_refusal_names_the_label_that_differs():
    harness = CoordinatorHarness(setup_for("dystop"))
    (a, b, *rest) = harness.setup.members[1].label_counts
    harness.join("w01", label_counts=(a, b + 1, *rest))
    reason = refusal_text(harness, "w01")
    assert all(fact in reason for fact in (f"{b + 1} ", "label 1", f" {b};"))
    harness.join("w02", label_counts=())
    reason = refusal_text(harness, "w02")
    assert all(fact in reason for fact in ("0 label counts", f" {2 + len(rest)};"))


def test_a_false_data_size_changes_nothing_b4():
    honest = play(rounds=6)
    harness = CoordinatorHarness(setup_for("dystop", rounds=6))
    harness.join("w00", data_size=10**9)
    harness.join_all()
    harness.run(600)
    assert [r.get("active_ids") for r in harness.records] == [
        r.get("active_ids") for r in honest.records
    ]
    assert [r.to_json() for r in harness.records] == [r.to_json() for r in honest.records]


@pytest.mark.parametrize(
    ("address", "remote", "addresses", "welcome"),
    [
        ("10.0.0.7:7001", "10.0.0.7", "session", True),
        ("127.0.0.1:7001", "127.0.0.1", "session", True),
        ("[::1]:7001", "127.0.0.1", "session", True),
        ("10.0.0.8:7001", "10.0.0.7", "session", False),
        ("evil.example.org:53", "10.0.0.7", "session", False),
        ("0.0.0.0:7001", "10.0.0.7", "session", False),
        ("10.0.0.7:0", "10.0.0.7", "session", False),
        ("10.0.0.7", "10.0.0.7", "session", False),
        ("unix:/tmp/x", "10.0.0.7", "any", False),
        ("10.0.0.8:7001", "10.0.0.7", "any", True),
        ("host.example.org:7001", "10.0.0.7", "any", True),
        ("a b\n:7001", "10.0.0.7", "any", False),
        ("memory:3", "", "session", True),
    ],
)
def test_others_are_sent_only_to_the_host_of_a_member(address, remote, addresses, welcome):
    setup = setup_for("dystop")
    setup = replace(setup, params=replace(setup.params, addresses=addresses))
    harness = CoordinatorHarness(setup)
    harness.receive = lambda name, m: harness.event(MessageFromMember(name, m, remote=remote))
    harness.join("w00", address=address)
    assert refusal_codes(harness, "w00") == ([] if welcome else ["address"])
