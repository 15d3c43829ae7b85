"""Single faults with a known result: duplicates, replays, frozen workers, two coordinators."""

from copy import deepcopy
from dataclasses import replace

import pytest

from dystop.mechanisms import MECHANISMS
from dystop.testbed.events import (
    Commit,
    EpochFound,
    FinishRun,
    LookUpEpoch,
    MessageFromCoordinator,
    MessageFromMember,
    SendToMember,
    Tick,
)
from dystop.testbed.ledger.tables import read_blob
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Execute, Heartbeat, Join, JoinOk, Report
from virtual.build import Case, cluster_of, findings_of, play, run_facts
from virtual.faults import Faults

PATIENT = Timeouts(
    heartbeat_s=1.0, suspect_s=20.0, dead_s=60.0, pull_s=30.0, round_s=60.0, gather_s=60.0,
)  # fmt: skip


def final_state(cluster):
    """Return the part of the final state that must not depend on the order of messages.

    The run may end before or after the last training, so it compares where all trainings started.
    """
    control = read_blob(max(cluster.coordinator.disk.rows("rounds"), key=lambda r: r.round).books)
    begun = [[e["start"] for e in a.log_lines if e["kind"] == "training"] for a in cluster.nodes]
    served = [a.disk.published.tobytes() for a in cluster.nodes if a.name == "server"]
    return (
        begun,
        served,
        control.staleness.tolist(),
        control.version.tolist(),
        control.pulls.counts.tolist(),
    )


@pytest.mark.parametrize("name", ["d-psgd", "fedavg", "matcha", "d-cliques"])
def test_repeated_and_reordered_messages_change_nothing(name):
    """C-8, with mechanisms whose plans do not depend on time."""
    case = Case(MECHANISMS[name](), rounds=10, timeouts=PATIENT)
    calm = play(case)
    wild = play(replace(case, faults=Faults(copies=3, shuffle_s=2.0)))
    assert findings_of(wild) == []
    assert final_state(calm) == final_state(wild)


def test_messages_of_an_old_epoch_or_another_run_have_no_effect():
    """F-10: all messages of the old coordinator are sent again under the new one."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=15, seed=3))
    old: list = []
    played: list[int] = []

    def change_coordinator():
        old.extend([*cluster.sent])
        cluster.crash(cluster.coordinator)
        cluster.boot(cluster.coordinator)

    def replay():
        assert cluster.coordinator.machine.epoch == 2
        for process in cluster.nodes:
            assert process.machine.state.epoch == 2  # it has met the new coordinator
            before = process.machine.state
            for _, name, message in old:
                if name == process.name and not isinstance(message, Heartbeat):
                    cluster.handle(process, MessageFromCoordinator(message))
            other = JoinOk("cd" * 16, 9, 99, 1.0, True, ())
            cluster.handle(process, MessageFromCoordinator(other))
            for name in ("version", "number", "last_round", "epoch", "training", "mailbox"):
                assert getattr(process.machine.state, name) == getattr(before, name)
            assert process.machine.state.published is before.published

    def replay_reports():
        before = cluster.coordinator.machine.state.control
        old_ones = [(n, m) for _, n, m in cluster.received if isinstance(m, Report)]
        for name, message in old_ones:
            if message.round < before.t - 1:
                cluster.handle(cluster.coordinator, MessageFromMember(name, message))
        assert cluster.coordinator.machine.state.control is before
        played.append(len(old_ones))

    cluster.schedule.after(6.0, change_coordinator)
    cluster.schedule.after(14.0, replay)
    cluster.schedule.after(16.0, replay_reports)
    cluster.run()
    assert len(old) > 10
    assert played[0] > 10
    assert cluster.finished == "15 rounds are over"
    assert findings_of(cluster) == []


@pytest.mark.parametrize("lasts_s", [4.0, 12.0, 40.0])
def test_a_frozen_worker_thaws_with_stale_orders(lasts_s):
    """C-5: rounds continue without it, and no old plan is applied after a newer one."""
    for seed in range(5):
        cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=25, seed=seed))
        frozen = cluster.nodes[1]
        cluster.schedule.after(5.0, lambda c=cluster, a=frozen: c.freeze(a, lasts_s))
        cluster.run()
        assert cluster.finished == "25 rounds are over"
        assert findings_of(cluster) == []
        rounds = [entry["round"] for entry in frozen.log_lines if entry["kind"] == "applied"]
        assert rounds == sorted(set(rounds))


def _flat(actions):
    for action in actions:
        yield action
        if isinstance(action, Commit):
            yield from _flat(action.after_commit)


def test_of_two_coordinators_the_one_with_the_lower_epoch_ends():
    """The old coordinator was frozen, not dead: it resumes while a new one runs."""
    cluster = cluster_of(Case(MECHANISMS["d-psgd"](), rounds=20, seed=5))
    kept = {}

    def replace_it():
        coordinator = cluster.coordinator
        kept.update(
            machine=coordinator.machine,
            offset_s=coordinator.offset_s,
            disk=deepcopy(coordinator.disk),
        )
        cluster.crash(coordinator)
        cluster.boot(coordinator)

    def wake_up():
        old, now_s = kept["machine"], cluster.schedule.now_s + kept["offset_s"]
        joins = [
            MessageFromMember(n, m)
            for _, n, m in cluster.received
            if isinstance(m, Join) and m.epoch == 0
        ]
        asked = old.handle_all([Tick(), *joins], now_s)  # makes it repeat the orders of its round
        orders = [a for a in _flat(asked) if isinstance(a, SendToMember)]
        assert any(isinstance(a.message, Execute) for a in orders)
        for a in orders:
            process = cluster.by_name[a.name]
            before = process.machine.state
            cluster.handle(process, MessageFromCoordinator(a.message))
            assert process.machine.state is before
        asked = MessageFromMember("w00", Heartbeat(99, 2))
        assert old.handle(asked, now_s + 0.1)[0] == LookUpEpoch(asked)
        last = old.handle(EpochFound(asked, cluster.coordinator.disk.epoch()), now_s + 0.1)
        assert [a.code for a in last if isinstance(a, FinishRun)] == [3]
        assert old.handle(Tick(), now_s + 60.0) == []

    cluster.schedule.after(7.0, replace_it)
    cluster.schedule.after(12.0, wake_up)
    cluster.run()
    assert cluster.finished == "20 rounds are over"
    assert findings_of(cluster) == []


def test_a_partition_of_half_of_the_workers_heals():
    cluster = cluster_of(Case(MECHANISMS["dystop"](), workers=6, rounds=100))
    cluster.schedule.after(5.0, lambda: cluster.cut(frozenset({0, 1}), 12.0))
    cluster.run()
    assert cluster.finished == "100 rounds are over"
    assert findings_of(cluster) == []
    for node in (0, 1):  # they take part again after the cut
        assert max(r for r, i, e in run_facts(cluster).outcomes if i == node and e == "DONE") > 90
