"""Quarantine and its end: pardons, new certificates, and certificates in rosters."""

import threading
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.errors import ConfigError, RunFolderError
from dystop.folders.run_folder import update_info
from dystop.testbed.coordinator.conduct.quarantine import REVOKED
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Enrolled, Member
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.events import ConfirmPardon, MessageFromMember, Tick
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import WorkerLine, restore
from dystop.testbed.protocol.messages import JoinOk, Peer, Reject, Roster
from dystop.testbed.security import authority
from dystop.testbed.setup.operations import (
    PARDONS,
    PardonRequests,
    check_certificates,
    member_states,
    request_pardon,
)
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from support.testbed.coordinator_fixtures import CoordinatorHarness, rows, setup_for
from support.testbed.memory_ledger import MemoryLedger


def sent(harness, kind, name):
    return [message for who, message in harness.sent if who == name and isinstance(message, kind)]


class Certified(CoordinatorHarness):
    """All members have a certificate; `fingerprints` holds those that differ from the default."""

    def __init__(self, *words):
        super().__init__(*words)
        self.fingerprints = {}

    def receive(self, name, message):
        self.event(MessageFromMember(name, message, self.fingerprints.get(name, f"of-{name}")))


def run_with_quarantine(rounds=40) -> CoordinatorHarness:
    """A run whose worker 2 has been put in quarantine by the others."""
    harness = Certified(setup_for("d-psgd", rounds=rounds))
    harness.join_all()
    harness.run(5.0)
    for reporter in (0, 1, 3):
        harness.machine.state.strikes.model_refused(reporter, 2, "norm", harness.machine.state.at_s)
        harness.machine.state.observations.pull_failed(
            reporter, 2, "norm", harness.machine.state.at_s
        )
    member = harness.machine.state.members.of_node(2)
    harness.machine._quarantine.quarantine(member, "3 refused models")
    harness.machine.state.write_state()
    harness.workers["w02"].up = False
    harness.execute_actions(harness.machine._commits.actions(harness.machine.state))
    assert harness.machine.state.members.get("w02").state == "QUARANTINED"
    return harness


def test_a_pardon_clears_strikes_and_admits_the_worker():
    harness = run_with_quarantine()
    harness.join("w02", incarnation=9)
    assert sent(harness, Reject, "w02")[-1].code == "quarantined"
    actions = []
    execute_actions = harness.execute_actions
    harness.execute_actions = lambda todo: (actions.extend(todo), execute_actions(todo))
    harness.machine.sanction("pardon", "w02")
    harness.event(Tick())
    assert actions[-1] == ConfirmPardon("w02")  # after the commit
    again = CoordinatorMachine(harness.setup, restore(harness.ledger)).state
    for state in (harness.machine.state, again):
        assert (state.strikes.all(), state.observations.excluded) == ([], {})
        assert state.members.get("w02").state == "LEFT"
    harness.join("w02", incarnation=10)
    harness.run(60)
    assert len(sent(harness, JoinOk, "w02")) == 2
    assert any(p.name == "w02" and p.address for p in sent(harness, Roster, "w00")[-1].peers)
    assert harness.records[-1].alive == 5
    assert harness.finished


def test_a_pardon_without_a_quarantine_changes_nothing():
    harness = Certified(setup_for("dystop"))
    harness.join_all()
    before = rows(harness, "workers")
    for name in ("w01", "unknown"):
        harness.machine.sanction("pardon", name)
        assert ConfirmPardon(name) in harness.machine.handle(Tick(), harness.now_s)
    assert rows(harness, "workers") == before


def test_a_new_certificate_admits_an_expelled_worker():
    harness = Certified(setup_for("dystop", rounds=60))
    harness.join_all()
    harness.machine.sanction("expel", "w01")
    harness.event(Tick())
    assert sent(harness, Reject, "w01")[-1] == Reject("revoked", REVOKED)
    harness.machine.sanction("readmit", "w01")
    harness.event(Tick())
    harness.join("w01", incarnation=9)  # an old session that is not yet cut
    assert len(sent(harness, JoinOk, "w01")) == 1
    assert sent(harness, Reject, "w01")[-1].code == "revoked"
    harness.fingerprints["w01"] = "new"
    harness.join("w01", incarnation=10)
    assert len(sent(harness, JoinOk, "w01")) == 2
    harness.run(2.0)
    fingerprints = {p.name: p.fingerprint for p in sent(harness, Roster, "w00")[-1].peers}
    assert (fingerprints["w01"], fingerprints["w02"]) == ("new", "of-w02")


def test_a_stolen_certificate_does_not_lock_its_owner_out():
    harness = Certified(setup_for("dystop", rounds=60))
    harness.join_all()
    harness.join("w01", incarnation=2**63 - 1)  # the thief
    harness.join("w01", incarnation=1)  # the owner
    assert sent(harness, Reject, "w01")[-1].code == "replaced"
    harness.machine.sanction("expel", "w01")
    harness.event(Tick())
    harness.machine.sanction("readmit", "w01")
    harness.event(Tick())
    harness.fingerprints["w01"] = "new"
    harness.join("w01", incarnation=0)
    assert [m.incarnation for m in sent(harness, JoinOk, "w01")] == [1, 2, 3]
    harness.fingerprints["w01"] = "of-w01"
    harness.join("w01", incarnation=2**63 - 1)
    assert sent(harness, Reject, "w01")[-1].code == "revoked"


def test_a_new_certificate_does_not_end_a_quarantine():
    harness = run_with_quarantine()
    harness.machine.sanction("expel", "w02")
    harness.machine.sanction("readmit", "w02")
    harness.event(Tick())
    assert harness.machine.state.members.get("w02").state == "QUARANTINED"


def test_a_renewed_certificate_makes_a_new_roster():
    harness = Certified(setup_for("dystop", rounds=60))
    harness.join_all()
    harness.run(2.0)
    before = len(sent(harness, Roster, "w00"))
    harness.fingerprints["w03"] = "renewed"
    harness.join("w03", incarnation=5)
    harness.run(1.0)
    assert len(sent(harness, Roster, "w00")) == before + 1
    assert Peer("w03", 3, "mem:w03", "renewed") in sent(harness, Roster, "w00")[-1].peers


def test_the_allow_list_holds_peers_to_their_certificates():
    allowed = AllowList("observer")
    assert allowed("observer", "zz")  # before the first roster
    peers = [Peer("w01", 1, "", ""), Peer("observer", 5, "", "")]
    allowed.update(peers)
    assert allowed("w01", "anything")  # has not joined yet
    joined = [replace(peers[0], fingerprint="aa"), replace(peers[1], fingerprint="oo")]
    assert allowed.update(joined) == set()  # its first pull may have been faster than the roster
    assert (allowed("w01", "aa"), allowed("w01", "bb"), allowed("observer", "zz")) == (
        True,
        False,
        False,
    )
    assert allowed.update(peers) == set()  # a coordinator that was started again
    assert not allowed("w01", "bb")
    assert allowed.update([replace(joined[0], fingerprint="bb"), joined[1]]) == {"w01"}
    assert (allowed("w01", "aa"), allowed("w01", "bb")) == (False, True)
    assert allowed.update([joined[0]]) == {"w01", "observer"}
    assert not allowed("observer", "oo")  # removed from the roster
    assert allowed("w01", "")  # a transport without certificates


class FakeProcess:
    """A coordinator's process that only records requests."""

    finish = None

    def __init__(self, *members):
        self.asked, self.current, self.on_pardoned = [], list(members), None

    def sanction(self, sanction, name):
        self.asked.append((sanction, name))

    def members(self):
        return self.current


def test_requests_are_handed_over_once_and_deleted_when_done(tmp_path):
    process = FakeProcess()
    pardons = PardonRequests(tmp_path, process)
    pardons.poll()
    (tmp_path / PARDONS).mkdir()
    (tmp_path / PARDONS / "w01").touch()
    pardons.poll()
    pardons.poll()
    assert process.asked == [("pardon", "w01")]
    process.on_pardoned("w01")
    assert not list((tmp_path / PARDONS).iterdir())
    (tmp_path / PARDONS / "w01").touch()
    pardons.poll()
    assert len(process.asked) == 2


def test_a_pardon_request_is_deleted_after_the_commit(tmp_path):
    ledger = MemoryLedger()
    ledger.write([WorkerLine("w01", 1, "QUARANTINED", 1, "", "bad", 0.0)])
    machine = CoordinatorMachine(setup_for("dystop"), restore(ledger))
    with MemoryHub() as hub:
        process = CoordinatorProcess(MemoryTransport(hub, "coordinator"), machine, ledger, "here")
        pardons = PardonRequests(tmp_path, process)
        (tmp_path / PARDONS).mkdir()
        (tmp_path / PARDONS / "w01").touch()
        pardons.poll()
        thread = threading.Thread(target=process.run)
        thread.start()
        until = time.monotonic() + 1200
        while (tmp_path / PARDONS / "w01").exists() and time.monotonic() < until:
            time.sleep(0.01)
        kept = {line.name: line.state for line in ledger.rows("workers")}
        process.interrupt()
        thread.join()
    assert kept["w01"] == "LEFT"
    assert not (tmp_path / PARDONS / "w01").exists()


def written(folder, *lines):
    ledger = SqliteLedger(folder / "state.db")
    ledger.write([WorkerLine(name, k, state, 1, "", note, 0.0) for k, (name, state, note) in
                  enumerate(lines)])  # fmt: skip
    return ledger


def test_who_can_be_pardoned(tmp_path):
    with pytest.raises(RunFolderError, match="no ledger"):
        member_states(tmp_path)
    out = "QUARANTINED"
    lines = ("w00", "JOINED", ""), ("w01", out, "3 refused"), ("w02", out, REVOKED)
    ledger = written(tmp_path, *lines)  # a coordinator may have it open
    for name, fact in (
        ("w00", "joined"),
        ("w02", "dystop pki issue w02"),
        ("w9", "w00, w01, w02"),
    ):
        with pytest.raises(ConfigError, match=fact):
            request_pardon(tmp_path, name, 0.0)
    assert not request_pardon(tmp_path, "w01", 0.0)
    assert [p.name for p in (tmp_path / PARDONS).iterdir()] == ["w01"]
    ledger.close()


def test_the_command_on_a_stopped_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["fleet.workers=2", "data.name=synthetic", "data.train_limit=100", "data.test_limit=20"]
    words += ["model.name=softmax", "testbed.time_scale=0.01", "stop.rounds=1", "--no-report"]
    made = CliRunner().invoke(app, ["testbed", *words, "--transport", "memory", "--name", "run"])
    assert made.exit_code == 0, made.output
    refused = CliRunner().invoke(app, ["pardon", "runs/run", "w01"])
    assert (refused.exit_code, "finished" in refused.output) == (2, True)
    update_info(tmp_path / "runs/run", status="interrupted")
    refused = CliRunner().invoke(app, ["pardon", "runs/run", "w01"])
    assert (refused.exit_code, "(left)" in refused.output) == (2, True)
    written(tmp_path / "runs/run", ("w00", "LEFT", ""), ("w01", "QUARANTINED", "bad")).close()
    waiting = CliRunner().invoke(app, ["pardon", "runs/run", "w01"])
    assert (waiting.exit_code, "no coordinator" in waiting.output) == (0, True), waiting.output
    assert (tmp_path / "runs/run" / PARDONS / "w01").exists()


def test_certificates_are_compared_with_members(tmp_path):
    authority.init(tmp_path)
    first = authority.issue(tmp_path, "w00")
    here = Member(Enrolled("w00", 0), "JOINED", fingerprint=first, session=True)
    process = FakeProcess(here)

    def look():
        process.asked.clear()
        check_certificates(tmp_path, process)
        return list(process.asked)

    assert look() == []
    authority.revoke(tmp_path, "w00")
    assert look() == [("expel", "w00")]
    authority.issue(tmp_path, "w00")  # at once: the old one is on the session all the same
    assert look() == [("expel", "w00")]
    process.current = [replace(here, state="QUARANTINED", session=False, note=REVOKED)]
    assert look() == [("readmit", "w00")]
    process.current = [replace(here, state="QUARANTINED", session=False, note="3 refused models")]
    assert look() == []
    (tmp_path / "revoked.json").write_text("{")  # half-written: it admits no member
    assert look() == []
