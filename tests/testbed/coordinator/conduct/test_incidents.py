"""Incidents name the member: in the ledger, in the log, for `dystop check`; only floods decide."""

import pytest

from dystop.testbed.coordinator.conduct.incidents import MAX_REPORTED, entry_from_json
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import LogWarning, MemberIncident, MessageFromMember, Tick
from dystop.testbed.ledger.tables import restore
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import Incident
from support.testbed.coordinator_fixtures import CoordinatorHarness, rows, setup_for


@pytest.fixture
def harness():
    harness = CoordinatorHarness(setup_for("dystop", n=80))
    for k in range(3):
        harness.join(f"w0{k}")
    return harness


def entries(harness):
    kept = [line for line in rows(harness, "kept") if line.key.startswith("incident:")]
    return {(e.member, e.kind, e.reporter): e for e in (entry_from_json(k.value) for k in kept)}


def warnings(harness, event):
    actions = harness.machine.handle(event, harness.now_s)
    harness.execute_actions(actions)
    return [a.text for a in actions if isinstance(a, LogWarning)]


def test_incidents_of_one_kind_are_counted_written_and_logged_once(harness):
    incidents = harness.machine.state.incidents
    for k in range(50):
        harness.now_s += 0.01
        harness.event(Tick())
        incidents.record(1, "flood", f"pull {k}")
    assert entries(harness)["w01", "flood", ""].count == 1  # the rest waits for its second
    harness.run(3.0)
    entry = entries(harness)["w01", "flood", ""]
    assert (entry.count, entry.text) == (50, "pull 49")
    assert 0 < entry.last_s - entry.first_s < 0.6
    assert harness.machine.state.incidents.written == (entry,)


def test_the_process_and_its_transport_report_members_by_name(harness):
    (line,) = warnings(harness, MemberIncident("w02", "flood", "too many sessions"))
    assert "w02: flood, once" in line
    assert warnings(harness, MemberIncident("nobody", "flood")) == []
    harness.run(2.0)
    assert entries(harness)["w02", "flood", ""].count == 1


def test_a_worker_reports_what_it_saw_of_a_peer(harness):
    message = Incident(2, "half_open", 40, "40 pulls\nwithout a request")
    assert decode(encode(message), "coordinator") == message
    (line,) = warnings(harness, MessageFromMember("w01", message))
    assert line.startswith("incident: w02: half open, 40 times")
    assert "reported by w01: 40 pulls\\nwithout" in line
    assert warnings(harness, MessageFromMember("w01", message)) == []  # once a minute
    harness.run(61.0)
    harness.join("w01")
    assert len(warnings(harness, MessageFromMember("w01", message))) == 1
    member = harness.machine.state.members.get("w02")
    assert member is not None
    assert member.state != "QUARANTINED"
    assert harness.machine.state.strikes.all() == []


def test_false_incidents_are_shown_as_bad_messages_and_bounded(harness):
    harness.receive("w01", Incident(1, "flood", 1))
    harness.receive("w01", Incident(5000, "flood", 1))
    for node in range(2, 80):
        harness.now_s += 0.1
        harness.receive("w01", Incident(node, "flood", 1))
    harness.run(2.0)
    found = entries(harness)
    assert found["w01", "bad_message", ""].count == 2
    assert sum(reporter == "w01" for _, _, reporter in found) == MAX_REPORTED
    with pytest.raises(BadMessage):
        encode(Incident(1, "flood", 0))


def test_a_worker_that_floods_two_others_is_on_trial(harness):
    """They refuse its pulls, so a round would wait for its order; one reporter may lie."""
    state = harness.machine.state
    for _ in range(3):
        harness.receive("w01", Incident(0, "flood", 40))
    harness.receive("w02", Incident(0, "busy", 1))
    assert not state.failures.is_on_trial(0, state.at_s)
    harness.receive("w02", Incident(0, "flood", 40))
    assert state.failures.is_on_trial(0, state.at_s)
    assert not state.failures.is_excluded(0, state.at_s)
    assert not any(state.failures.is_on_trial(node, state.at_s) for node in (1, 2))


def test_floods_of_long_ago_do_not_count(harness):
    state = harness.machine.state
    harness.receive("w01", Incident(0, "flood", 1))
    harness.run(state.params.guards.window_s + 1.0)
    harness.join("w02")
    harness.receive("w02", Incident(0, "flood", 1))
    assert not state.failures.is_on_trial(0, state.at_s)


def test_incidents_survive_a_restart(harness):
    harness.machine.state.incidents.record(2, "hung", "no report")
    harness.run(2.0)
    machine = CoordinatorMachine(harness.setup, restore(harness.ledger))
    machine.state.incidents.record(2, "hung", "again")
    machine.state.incidents.write_all()
    (entry,) = machine.state.incidents.written
    assert (entry.member, entry.kind, entry.count, entry.text) == ("w02", "hung", 2, "again")


def test_a_worker_reports_its_own_damaged_checkpoint(harness):
    (line,) = warnings(harness, MessageFromMember("w01", Incident(1, "damaged_checkpoint", 1, "x")))
    assert line.startswith("incident: w01: damaged checkpoint, once")
    harness.run(2.0)
    assert set(entries(harness)) == {("w01", "damaged_checkpoint", "w01")}


def test_a_failed_backup_is_an_incident_of_the_coordinator(harness):
    (line,) = warnings(harness, MemberIncident("coordinator", "backup_failed", "no space"))
    assert line.startswith("incident: coordinator: backup failed, once")
    harness.run(2.0)
    assert entries(harness)["coordinator", "backup_failed", ""].text == "no space"
