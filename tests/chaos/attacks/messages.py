"""Members that send valid but absurd messages: numbers, sizes, addresses."""

import time
from dataclasses import replace
from typing import Any

from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES, encode
from dystop.testbed.protocol.messages import Join, Mail, Report, Used
from dystop.testbed.worker.model_server import ModelEncoder
from dystop.testbed.worker.session import join_message

from .hostile import HostileWorker, attack

LARGEST = 2**63 - 1
ENTRIES = 9000
PER_SECOND = 25
PAUSE_S = 1.0


def _join(hostile: HostileWorker, **changes: Any) -> Join:
    """Return the worker's own join with changed fields."""
    assert hostile.worker is not None
    machine = hostile.worker.machine
    return replace(join_message(machine.setup, machine.state, machine.phase), **changes)


@attack
def join_mail(hostile: HostileWorker) -> None:
    """Join again and again, with mail whose number is the largest that a message allows."""

    def run() -> None:
        while True:
            for node in (0, 1, 2):
                hostile.send(_join(hostile, mail=(Mail(node, LARGEST, 1),)))
            time.sleep(PAUSE_S)

    hostile.thread(run)


@attack
def large_reports(hostile: HostileWorker) -> None:
    """Send reports of more than a megabyte, 25 a second."""
    used = tuple(Used(1, 0, 1, 1, "ab" * 32, 10, 0.1) for _ in range(ENTRIES))

    def run() -> None:
        assert hostile.worker is not None
        while True:
            hostile.send(Report(hostile.worker.machine.state.last_round, "mixed", used))
            time.sleep(1.0 / PER_SECOND)

    hostile.thread(run)


@attack
def padded_reports(hostile: HostileWorker) -> None:
    """Send valid reports that spaces make as long as a message may be, 25 a second."""

    def run() -> None:
        while True:
            assert hostile.worker is not None
            text = encode(Report(hostile.worker.machine.state.last_round, "mixed"))
            if link := hostile.worker._session._link:
                link.send(text[:-1] + b" " * (MAX_MESSAGE_BYTES - len(text)) + text[-1:])
            time.sleep(1.0 / PER_SECOND)

    hostile.thread(run)


@attack
def served_number(hostile: HostileWorker) -> None:
    """Serve models whose header claims the largest training number."""
    served_model = ModelEncoder.served_model

    def lie(self: ModelEncoder, model: Any, request: Any) -> Any:
        served = served_model(self, model, request)
        if not hostile.began.is_set():
            return served
        return replace(served, header=replace(served.header, number=LARGEST))

    ModelEncoder.served_model = lie  # type: ignore[method-assign]
