"""Workers that claim to have obeyed a newer coordinator: liars, and honest ones after a restore."""

from copy import deepcopy

import pytest

from dystop.mechanisms import MECHANISMS
from dystop.testbed.coordinator.machine import REPLACED
from dystop.testbed.coordinator.quarantine import MAX_EPOCH_LEAP
from dystop.testbed.events import MessageFromMember
from dystop.testbed.ledger.sqlite import EPOCH_GAP
from dystop.testbed.ledger.tables import MetaLine
from dystop.testbed.protocol.messages import ExecuteAck, Heartbeat
from virtual.build import Case, cluster_of, run_facts, verdict


def strikes_of(cluster):
    return [s.accused for s in cluster.coordinator.machine.state.strikes.all()]


def lies(cluster, name, at_s, ahead, kind="beat"):
    """A worker says at some time that it obeys an epoch so far ahead."""

    def lie():
        epoch = min(cluster.coordinator.machine.epoch + ahead, 2**63 - 1)
        said = Heartbeat(99, epoch) if kind == "beat" else ExecuteAck(1, "stale_epoch", epoch)
        cluster.handle(cluster.coordinator, MessageFromMember(name, said))

    cluster.schedule.after(at_s, lie)


def last_done(cluster, node):
    return max(r for r, i, e in run_facts(cluster).outcomes if i == node and e == "DONE")


@pytest.mark.parametrize("kind", ["beat", "ack"])
@pytest.mark.parametrize("ahead", [1, 7, MAX_EPOCH_LEAP + 1, 2**63])
def test_one_lie_stops_nothing(ahead, kind):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))
    lies(cluster, "w01", 5.0, ahead, kind)
    cluster.run()
    assert cluster.finished == "20 rounds are over"
    assert verdict(cluster) == []
    assert strikes_of(cluster) == [1]
    assert (
        cluster.coordinator.machine.epoch == cluster.coordinator.disk.epoch() < 1 + MAX_EPOCH_LEAP
    )
    assert [last_done(cluster, node) for node in range(4)] == [20] * 4  # the liar as well


@pytest.mark.parametrize("ahead", [3, 2**63])
def test_who_lies_again_and_again_is_sent_away(ahead):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))
    for at_s in (5.0, 6.0, 7.0, 8.0, 9.0):
        lies(cluster, "w01", at_s, ahead)
    cluster.run()
    assert cluster.finished == "20 rounds are over"
    assert verdict(cluster) == []
    assert strikes_of(cluster) == [1] * 3  # who is in quarantine is not even asked about
    assert cluster.coordinator.machine.state.members.get("w01").state == "QUARANTINED"
    assert [exit.code for exit in cluster.nodes[1].exits] == [6]
    assert [last_done(cluster, node) for node in (0, 2, 3)] == [20] * 3


def test_the_old_coordinator_goes_when_the_ledger_bears_it_out():
    """The claim is true: somebody else has taken over the ledger."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=2))

    def take_over():
        cluster.coordinator.disk.write(
            [MetaLine("epoch", str(cluster.coordinator.machine.epoch + 1))]
        )

    cluster.schedule.after(5.0, take_over)
    lies(cluster, "w01", 6.0, 1)
    cluster.run()
    assert cluster.finished == REPLACED


def rolled_back(cluster, raised):
    """An old copy of the ledger takes the place of one that has seen three coordinators more."""
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


@pytest.mark.parametrize("seed", range(3))
def test_workers_obey_a_restored_ledger_and_none_is_a_liar(seed):
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=40, seed=seed))
    rolled_back(cluster, raised=EPOCH_GAP)  # as `dystop restore` does
    cluster.run()
    assert cluster.finished == "40 rounds are over"
    assert strikes_of(cluster) == []
    assert {finding.rule for finding in verdict(cluster)} <= {"I3"}  # what the control have lost


@pytest.mark.parametrize("seed", range(3))
def test_a_ledger_that_was_put_back_by_hand_costs_one_strike_in_all(seed):
    """Honest workers have seen a higher epoch than this ledger knows: it is outranked at once."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=40, seed=seed))
    rolled_back(cluster, raised=0)
    cluster.run()
    assert cluster.finished == "40 rounds are over"
    assert len(strikes_of(cluster)) == 1
    assert cluster.coordinator.machine.epoch == 5
    assert [last_done(cluster, node) for node in range(4)] == [40] * 4
    assert {finding.rule for finding in verdict(cluster)} <= {"I3"}
