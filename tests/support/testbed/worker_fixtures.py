"""A worker machine, and a driver that records its actions."""

import numpy as np

from dystop.testbed.events import (
    AnswerPull,
    CheckpointFailed,
    CheckpointSaved,
    MessageFromCoordinator,
    PullFinished,
    PullRequested,
    SaveCheckpoint,
    SendToCoordinator,
    SessionOpened,
    TrainingFinished,
)
from dystop.testbed.protocol.messages import Execute, ExecuteAck, JoinOk, Peer, Report, Row, Stage
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest
from dystop.testbed.worker.machine import WorkerMachine
from dystop.testbed.worker.state import Introduction, WorkerSetup, first_state

RUN = "ab" * 16
PEERS = tuple(Peer(f"w0{k}", k, f"memory:{k}", "") for k in range(4))


def vec(*values):
    return np.array(values, np.float32)


class WorkerHarness:
    """A machine and a driver that records actions; the disk works unless a test disables it."""

    def __init__(self, state=None, first_steps=3, deltas=False, **setup):
        setup = {"introduction": Introduction("s"), **setup}
        self.setup = WorkerSetup("w00", 0, first_steps=first_steps, deltas=deltas, **setup)
        state = state or first_state(vec(0, 0), np.zeros(1), deltas=deltas)
        self.machine = WorkerMachine(self.setup, state)
        self.now, self.disk_ok, self.disk = 0.0, True, None
        self.done = []

    def __call__(self, event, after_s=0.0):
        self.now += after_s
        self.done = []
        self._execute(self.machine.handle(event, self.now))
        return self.done

    def _execute(self, actions):
        for action in actions:
            self.done.append(action)
            if isinstance(action, SaveCheckpoint):
                if self.disk_ok:
                    self.disk = action.state
                    self._execute(self.machine.handle(CheckpointSaved(), self.now))
                    self._execute(action.after_save)
                else:
                    self._execute(self.machine.handle(CheckpointFailed("full"), self.now))

    def receive(self, message, after_s=0.0):
        return self(MessageFromCoordinator(message), after_s)

    def join(self, warm=False, epoch=1, round_=1, peers=PEERS):
        self(SessionOpened())
        return self.receive(JoinOk(RUN, epoch, round_, 1.0, warm, peers))

    def execute(self, round_, *pulls, train=True, weights=None, epoch=1, **more):
        """Send an order of one stage; the default is equal weights over all models."""
        nodes = sorted({0, *(p.node for p in pulls if p.into == "row")})
        row = Row(tuple(nodes), weights or (1 / len(nodes),) * len(nodes), **more)
        order = Execute(epoch, round_, train, (Stage(pulls, row),), steps=4, budget_s=5.0)
        return self.receive(order)

    def finish_pull(self, fetch, *values, version=1, number=0):
        head = ModelHeader(version, number, 0, 8, "d" * 64, "s")
        return self(PullFinished(fetch.key, head, vec(*values), 100, 0.25, 1))

    def end_training(self, *values, number=None, seconds=2.0, loss=0.5):
        number = self.machine.state.training.number if number is None else number
        return self(TrainingFinished(number, vec(*values), np.array([9]), loss, 64, seconds))

    def ask(self, key=1, peer="w01", **request):
        return self(PullRequested(key, peer, PullRequest(RUN, **request)))

    @property
    def state(self):
        return self.machine.state

    def restart(self):
        """Return a new process with the state on the disk."""
        other = WorkerHarness(self.disk)
        other.disk = self.disk
        return other


def of(actions, kind):
    return [a for a in actions if isinstance(a, kind)]


def sent(actions, kind):
    return [a.message for a in of(actions, SendToCoordinator) if isinstance(a.message, kind)]


def reports(actions):
    return [(r.round, r.kind) for r in sent(actions, Report)]


def ack_of(actions):
    (ack,) = sent(actions, ExecuteAck)
    return ack.state


def refusal(actions):
    (serve,) = of(actions, AnswerPull)
    assert isinstance(serve.answer, PullRefused)
    return serve.answer.code
