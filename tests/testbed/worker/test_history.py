"""The event log of a worker: lines for messages and actions, and a truncated file."""

from dataclasses import replace

import numpy as np

from dystop.testbed.events import (
    MessageFromCoordinator,
    SaveCheckpoint,
    SendToCoordinator,
    StartTraining,
)
from dystop.testbed.protocol.messages import Execute, ExecuteAck, Rejected, Report, Roster, Used
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.worker.history import EventLog, EventLogger, lines_of, read_event_log
from dystop.testbed.worker.state import first_state


def line(kind, **fields):
    return {"kind": kind, **fields}


def test_messages_and_actions_become_lines():
    lines = []
    logger = EventLogger(lambda kind, **fields: lines.append({"kind": kind, **fields}))
    logger.started(incarnation=1, version=0, number=-1, round=0, epoch=0)
    logger.event(MessageFromCoordinator(Roster(9, ())))  # the machine decides whether it is obeyed
    logger.action(SaveCheckpoint(replace(first_state(np.zeros(2), np.zeros(0)), epoch=3)))
    logger.event(MessageFromCoordinator(Execute(3, 5, True)))
    logger.action(SendToCoordinator(ExecuteAck(5, "accepted")))
    header = ModelHeader(4, 2, 1, 8, "d", "schema")
    logger.served(header, PullRequest("run", 5))
    logger.served(header, PullRequest("run", 6))
    report = Report(5, "mixed", (Used(1, 0, 7, 2, "e", 8, 0.1),), (Rejected(2, 0, "norm"),), 4, 2)
    logger.action(SendToCoordinator(report))
    logger.action(SendToCoordinator(report))
    logger.action(StartTraining(3, np.zeros(2, np.float32), np.zeros(0, np.int64), 1, 1.0))
    kinds = [entry["kind"] for entry in lines]
    assert kinds == [
        "start", "epoch", "order", "published", "used", "rejected", "applied", "training",
    ]  # fmt: skip
    assert lines[2] == line("order", round=5, epoch=3, train=True, state="accepted")


def test_a_training_that_failed_says_why():
    (last,) = lines_of(Report(5, "trained", version=4, number=2, text="not finite"))
    assert (last["kind"], last["text"]) == ("trained", "not finite")
    assert "text" not in lines_of(Report(5, "trained", version=4, number=2))[0]


def test_a_truncated_line_is_skipped(tmp_path):
    path = tmp_path / "w00" / "history.jsonl"
    event_log = EventLog(path)
    event_log.write("epoch", epoch=1)
    event_log.close()
    with path.open("a") as file:
        file.write('{"kind":"epo')
    again = EventLog(path)
    again.write("epoch", epoch=2)
    again.close()
    again.write("epoch", epoch=3)  # after close: discarded
    assert [entry["epoch"] for entry in read_event_log(path)] == [1, 2]
