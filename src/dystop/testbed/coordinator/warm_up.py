"""Rounds that are planned, answered and dropped before a member may join.

Mechanisms plan with compiled code. The first call compiles it, or loads it from the cache of the
machine. On a new machine this takes seconds, in which the coordinator reads no message. If round 1
were the first call, it would last so much longer.
"""

from dystop.format import FORMAT
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.protocol.messages import Execute, Join, Report, Used

_LOG = throttled_logger(__name__)

ROUNDS = 10  # until workers with mail, queues and a last outcome have been planned for
PULL_S, ROUND_S = 0.1, 1.0  # made-up times


def warm_up(setup: CoordinatorSetup, rounds: int = ROUNDS) -> None:
    """Plan and close some rounds and drop them, so that all compiled code is loaded.

    Nothing is sent or written: actions are requested from a state that nobody executes. An error of
    the mechanism ends the warm-up and is logged. It is not raised: the run has rounds of its own,
    and the round in which the error occurs again reports it.
    """
    state = CoordinatorState(setup, epoch=0)
    _join_all(state)
    for done in range(rounds):
        try:
            _play_round(Rounds(state))
        except Exception as error:  # of any kind: mechanisms may be a user's
            _LOG.warning(
                "the warm-up was cut short after %d of %d rounds: %s; the run begins all the same, "
                "and the round in which the error occurs again reports it",
                done,
                rounds,
                shown(repr(error)),
            )
            return


def _join_all(state: CoordinatorState) -> None:
    for enrolled in state.setup.members:
        join = Join(
            format=FORMAT,
            run=state.setup.run,
            incarnation=0,
            address="",
            schema=state.setup.schema,
            software="",
            data_size=enrolled.data_size,
            label_counts=enrolled.label_counts,
            version=0,
            number=-1,
            last_round=0,
            phase="idle",
            epoch=0,
        )
        state.members.join(enrolled.name, join, state.at_s)
        state.worker_joined(enrolled.node, join, restarted=True, warm=True)


def _play_round(rounds: Rounds) -> None:
    """Open a round, answer its orders, end the trainings that it starts, and close it."""
    state = rounds.state
    rounds.open_next()
    assert rounds.current is not None  # all members are present
    orders, size = rounds.current.orders, state.setup.fleet.model_bytes
    state.at_s += ROUND_S
    for node, order in orders.items():
        rounds.apply_report(node, _answer(order, size))
    for node, order in orders.items():
        if order.train:
            rounds.apply_report(node, Report(order.round, "trained", steps=order.steps, loss=1.0))
    rounds.close()


def _answer(order: Execute, size: int) -> Report:
    """Return the report of a worker that pulled all models of its order."""
    used = tuple(
        Used(pull.node, stage, 1, order.round - 1, "", size, PULL_S, distance=1.0)
        for stage, part in enumerate(order.stages)
        for pull in part.pulls
    )
    return Report(order.round, "mixed", used, seconds=PULL_S)
