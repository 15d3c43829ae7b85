"""Workers that claim a higher epoch: false claims, and true ones after a restore of the ledger."""

from copy import deepcopy

import pytest

from dystop.mechanisms import MECHANISMS
from dystop.testbed.coordinator.conduct.quarantine import MAX_EPOCH_LEAP
from dystop.testbed.coordinator.machine import REPLACED
from dystop.testbed.events import MessageFromMember
from dystop.testbed.ledger.recovery import EPOCH_GAP
from dystop.testbed.ledger.tables import MetaLine
from dystop.testbed.protocol.messages import ExecuteAck, Heartbeat
from virtual.build import Case, cluster_of, findings_of, run_facts


def strikes_of(cluster):
    return [s.accused for s in cluster.coordinator.machine.state.strikes.all()]


def claim_later(cluster, name, at_s, ahead, kind="beat"):
    """Schedule a claim of a worker that it obeys an epoch `ahead` of the current one."""

    def claim():
        epoch = min(cluster.coordinator.machine.epoch + ahead, 2**63 - 1)
        message = Heartbeat(99, epoch) if kind == "beat" else ExecuteAck(1, "stale_epoch", epoch)
        cluster.handle(cluster.coordinator, MessageFromMember(name, message))

    cluster.schedule.after(at_s, claim)


def last_done(cluster, node):
    return max(r for r, i, e in run_facts(cluster).outcomes if i == node and e == "DONE")


@pytest.mark.parametrize("kind", ["beat", "ack"])
@pytest.mark.parametrize("ahead", [1, 7, MAX_EPOCH_LEAP + 1, 2**63])
def test_one_false_claim_stops_nothing(ahead, kind):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))
    claim_later(cluster, "w01", 5.0, ahead, kind)
    cluster.run()
    assert cluster.finished == "20 rounds are over"
    assert findings_of(cluster) == []
    assert strikes_of(cluster) == [1]
    assert (
        cluster.coordinator.machine.epoch == cluster.coordinator.disk.epoch() < 1 + MAX_EPOCH_LEAP
    )
    assert [last_done(cluster, node) for node in range(4)] == [
        20
    ] * 4  # including the worker that made the claim


@pytest.mark.parametrize("ahead", [3, 2**63])
def test_repeated_false_claims_end_in_quarantine(ahead):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))
    for at_s in (5.0, 6.0, 7.0, 8.0, 9.0):
        claim_later(cluster, "w01", at_s, ahead)
    cluster.run()
    assert cluster.finished == "20 rounds are over"
    assert findings_of(cluster) == []
    assert strikes_of(cluster) == [1] * 3  # claims of a worker in quarantine are ignored
    assert cluster.coordinator.machine.state.members.get("w01").state == "QUARANTINED"
    assert [exit.code for exit in cluster.nodes[1].exits] == [6]
    assert [last_done(cluster, node) for node in (0, 2, 3)] == [20] * 3


def test_the_old_coordinator_ends_if_the_ledger_confirms_the_claim():
    """The claim is true: another coordinator has taken over the ledger."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))

    def take_over():
        cluster.coordinator.disk.write(
            [MetaLine("epoch", str(cluster.coordinator.machine.epoch + 1))]
        )

    cluster.schedule.after(5.0, take_over)
    claim_later(cluster, "w01", 6.0, 1)
    cluster.run()
    assert cluster.finished == REPLACED


def roll_back_ledger(cluster, raised):
    """Schedule the replacement of the ledger by a copy that is three coordinators older."""
    kept = []

    def restart():
        cluster.crash(cluster.coordinator)
        cluster.boot(cluster.coordinator)

    def roll_back():
        assert {process.machine.state.epoch for process in cluster.nodes} == {4}
        cluster.crash(cluster.coordinator)
        cluster.coordinator.disk = kept[0]
        epoch = kept[0].epoch()
        assert epoch == 1
        cluster.coordinator.disk.write([MetaLine("epoch", str(epoch + raised))])
        cluster.boot(cluster.coordinator)

    cluster.schedule.after(4.0, lambda: kept.append(deepcopy(cluster.coordinator.disk)))
    for at_s in (6.0, 9.0, 12.0):
        cluster.schedule.after(at_s, restart)
    cluster.schedule.after(17.0, roll_back)


@pytest.mark.parametrize("seed", range(12))
def test_workers_obey_a_restored_ledger_without_strikes(seed):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=40, seed=seed))
    roll_back_ledger(cluster, raised=EPOCH_GAP)  # as `dystop restore` does
    cluster.run()
    assert cluster.finished == "40 rounds are over"
    assert strikes_of(cluster) == []
    assert {finding.rule for finding in findings_of(cluster)} <= {
        "I3"
    }  # the rounds that the copy does not contain


@pytest.mark.parametrize("seed", range(3))
def test_a_ledger_restored_by_hand_costs_one_strike(seed):
    """Honest workers claim a higher epoch than the ledger has; the coordinator then exceeds it."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=40, seed=seed))
    roll_back_ledger(cluster, raised=0)
    cluster.run()
    assert cluster.finished == "40 rounds are over"
    assert len(strikes_of(cluster)) == 1
    assert cluster.coordinator.machine.epoch == 5
    assert [last_done(cluster, node) for node in range(4)] == [40] * 4
    assert {finding.rule for finding in findings_of(cluster)} <= {"I3"}
