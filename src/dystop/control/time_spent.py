"""What the workers do with their time in a round: computing, transferring, waiting.

Every second of every present worker belongs to exactly one of four:

computing              a local training runs
transferring           its exchange moves models: in each stage, the slowest link charged to it
waiting for others     it is active in this round, and waits for a slower worker
waiting for the round  it has finished its training, and the round does not activate it

An exchange waits first and transfers then. One that goes on after its round has closed counts as
transferring from there on, in the rounds in which it does. The simulator and the testbed call the
same function.
"""

from dataclasses import dataclass

import numpy as np

from dystop.sparse import Bools, Floats, Ints

SpentParts = tuple[Floats, Floats, Floats, Floats, Floats]  # as `spent_parts` returns them


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of a round, summed over the present workers; what is left waits for the round."""

    compute_s: float
    transfer_s: float
    wait_others_s: float


@dataclass(frozen=True)
class NewWork:
    """What the active workers begin in a round; times count from its opening."""

    active: Ints  # [A]
    transfer_s: Floats  # [A], how long the exchange moves models
    begin_s: Floats  # [A], when the new training begins; inf: none does
    end_s: Floats  # [A], when the new training ends


def total_of(parts: SpentParts) -> TimeSpent:
    """Return the sums over workers of what `spent_parts` returns."""
    busy_s, late_s, trains_s, moves_s, waits_s = (_total(part) for part in parts)
    return TimeSpent(
        compute_s=busy_s - late_s + trains_s, transfer_s=late_s + moves_s, wait_others_s=waits_s
    )


def compute_seconds(parts: SpentParts, alive: Bools, active: Ints) -> Floats:
    """Return how long each worker trains in a round, of what `spent_parts` returns, [N]."""
    busy_s, late_s, trains_s, _, _ = parts
    compute_s = np.zeros(len(alive))
    compute_s[alive] = busy_s - late_s
    compute_s[active] += trains_s
    return compute_s


def _total(seconds: Floats) -> float:
    return float(seconds[0]) if len(seconds) == 1 else float(np.add.reduce(seconds))


def spent_parts(
    duration_s: float,
    alive: Bools,
    exchange_end_s: Floats,
    training_end_s: Floats,
    new: NewWork,
) -> SpentParts:
    """Return how the present workers spend a round, worker by worker.

    Args:
        duration_s: H_t.
        alive: Who is present, [N].
        exchange_end_s: When an exchange of an earlier round ends; not above 0: none is left, [N].
        training_end_s: When the training under way ends, after that exchange; 0: none is, [N].
        new: What the active workers begin.

    Returns:
        (training and exchange of earlier rounds, that exchange alone) of each present worker, and
        (training, exchange, waiting for others) of each active one.
    """
    busy_s = np.clip(training_end_s[alive], 0.0, duration_s)
    late_s = np.clip(exchange_end_s[alive], 0.0, busy_s)
    first_s = np.clip(training_end_s[new.active], 0.0, duration_s)
    begin_s = np.clip(new.begin_s, first_s, duration_s)
    end_s = np.clip(new.end_s, begin_s, duration_s)
    exchange_s = begin_s - first_s  # as much of it as lies in this round
    waits_s = np.maximum(new.begin_s - first_s - new.transfer_s, 0.0)
    waits_s = np.minimum(waits_s, exchange_s)
    return busy_s, late_s, end_s - begin_s, exchange_s - waits_s, waits_s + duration_s - end_s
