"""Members that hang, stay silent or fail; and the control, which only burns processor time."""

import hashlib
import threading
import time
from dataclasses import replace
from typing import Any

from dystop.testbed.protocol.messages import Rejected, Report
from dystop.testbed.worker.training_thread import TrainingThread

from .hostile import HostileWorker, attack, change_messages

STEP_S = 0.02
RECONNECT_S = 0.2


@attack
def burn(hostile: HostileWorker) -> None:
    """Burn processor time: the argument is the share of a core that the process uses in all."""

    def run() -> None:
        share, block = float(hostile.argument), bytes(2**20)
        began_s, used_s = time.monotonic(), time.process_time()
        while True:
            time.sleep(STEP_S)
            due_s = used_s + share * (time.monotonic() - began_s)
            while time.process_time() < due_s:
                hashlib.sha256(block).digest()  # releases the interpreter's lock

    hostile.thread(run)


@attack
def hang(hostile: HostileWorker) -> None:
    """Never finish another training; heartbeats continue."""
    train = TrainingThread._run_training

    def hang_in_training(self: TrainingThread, request: Any) -> Any:
        if hostile.began.is_set():
            threading.Event().wait()
        return train(self, request)

    TrainingThread._run_training = hang_in_training  # type: ignore[method-assign]


@attack
def mute(hostile: HostileWorker) -> None:
    """Accept orders and never report."""
    change_messages(hostile, lambda message: None if isinstance(message, Report) else message)


@attack
def fail(hostile: HostileWorker) -> None:
    """Report every order as failed."""

    def failed(message: Any) -> Any:
        if isinstance(message, Report) and message.kind == "mixed":
            return Report(message.round, "failed", text="no")
        return message

    change_messages(hostile, failed)


@attack
def accuse(hostile: HostileWorker) -> None:
    """Report every pulled model as refused for its norm."""

    def accused(message: Any) -> Any:
        if isinstance(message, Report) and message.used:
            refused = tuple(
                Rejected(u.node, u.stage, "norm", version=u.version, digest=u.digest)
                for u in message.used
            )
            return replace(message, used=(), rejected=message.rejected + refused)
        return message

    change_messages(hostile, accused)


@attack
def reconnect(hostile: HostileWorker) -> None:
    """Close the session and open it again, several times a second."""

    def run() -> None:
        while True:
            time.sleep(RECONNECT_S)
            assert hostile.worker is not None
            link = hostile.worker._session._link
            if link is not None:
                link.close()

    hostile.thread(run)
