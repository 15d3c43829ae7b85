"""One member that hangs, stays silent, fails or comes and goes: the others go on without it."""

from dataclasses import replace
from typing import Any

import pytest

from dystop.mechanisms import MECHANISMS
from dystop.testbed.events import MessageFromMember
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Leave, Report
from virtual.build import Case, cluster_of, findings_of
from virtual.cluster import Cluster

BAD = 2  # the node that misbehaves
BEGINS_S = 10.0
SETTLED_S = BEGINS_S + 30.0
END_S = SETTLED_S + 40.0
SHARE = 0.8  # of the rounds per second that the others must keep


def hang(cluster: Cluster) -> None:
    """Its training never ends; heartbeats and models are served as before."""
    usual = cluster.on_start_training

    def on_start_training(process: Any, action: Any) -> None:
        if process.node != BAD:
            usual(process, action)

    cluster.on_start_training = on_start_training  # type: ignore[method-assign]


def report_nothing(cluster: Cluster) -> None:
    """It accepts its orders and never reports."""
    _change_reports(cluster, lambda report: None)


def report_failures(cluster: Cluster) -> None:
    """It reports each order as failed."""
    _change_reports(
        cluster,
        lambda report: Report(report.round, "failed") if report.kind == "mixed" else None,
    )


def report_late(cluster: Cluster) -> None:
    """It reports each exchange when its round was closed without it."""
    usual = cluster.on_send_to_coordinator

    def on_send(process: Any, action: Any) -> None:
        message = action.message
        if process.node != BAD or not isinstance(message, Report):
            usual(process, action)
            return

        def deliver() -> None:
            open_round = cluster.coordinator.machine.rounds.current
            if open_round is not None and open_round.t <= message.round:
                cluster.schedule.after(0.1, deliver)
            else:
                cluster.handle(cluster.coordinator, MessageFromMember(process.name, message))

        deliver()

    cluster.on_send_to_coordinator = on_send  # type: ignore[method-assign]


def _change_reports(cluster: Cluster, change: Any) -> None:
    usual = cluster.on_send_to_coordinator

    def on_send(process: Any, action: Any) -> None:
        message = action.message
        if process.node == BAD and isinstance(message, Report):
            message = change(message)
            if message is None:
                return
        usual(process, replace(action, message=message))

    cluster.on_send_to_coordinator = on_send  # type: ignore[method-assign]


def die(cluster: Cluster) -> None:
    """It is killed and not restarted."""
    cluster.crash(cluster.nodes[BAD])


def freeze_again_and_again(cluster: Cluster) -> None:
    """It is stopped for nine seconds out of ten."""
    cluster.freeze(cluster.nodes[BAD], 9.0)
    cluster.schedule.after(10.0, lambda: freeze_again_and_again(cluster))


def leave_again_and_again(cluster: Cluster) -> None:
    """It leaves and joins every second."""
    process = cluster.nodes[BAD]
    cluster.handle(cluster.coordinator, MessageFromMember(process.name, Leave("bye")))
    cluster.break_session(process.name)
    cluster.schedule.after(1.0, lambda: leave_again_and_again(cluster))


FAULTS = (hang, report_nothing, report_failures, report_late, die, freeze_again_and_again,
          leave_again_and_again)  # fmt: skip


def run_with(fault: Any) -> Cluster:
    case = Case(MECHANISMS["dystop"](), workers=7, rounds=100_000, timeouts=Timeouts())
    cluster = cluster_of(case)
    if fault is not None:
        cluster.schedule.after(BEGINS_S, lambda: fault(cluster))
    cluster.run(limit_s=END_S, after_s=0.0)
    return cluster


def rounds_per_s(cluster: Cluster) -> float:
    closed = [r.closed_s for r in cluster.coordinator.disk.rows("rounds") if r.closed_s]
    return sum(SETTLED_S <= s < END_S for s in closed) / (END_S - SETTLED_S)


@pytest.fixture(scope="module")
def usual_rounds_per_s():
    return rounds_per_s(run_with(None))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_others_keep_their_pace_with_dystop(fault, usual_rounds_per_s):
    cluster = run_with(fault)
    pace = rounds_per_s(cluster)
    print(f"{fault.__name__}: {pace:.2f} of {usual_rounds_per_s:.2f} rounds per second")
    assert pace >= SHARE * usual_rounds_per_s
    assert findings_of(cluster) == []
