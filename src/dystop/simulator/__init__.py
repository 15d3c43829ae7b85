"""The simulator: the paper's rounds in virtual time, with the decisions that the testbed takes too.

`dystop.simulator.loop.simulate` is the algorithm. `run_rounds` runs it, overlapped with the work of
a device where the device allows it (`dystop.simulator.pipeline`).
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dystop.record import RoundRecord
    from dystop.simulator.state import Components, State


def every_round(t: int) -> bool:
    """Say that the models of each round are needed."""
    return True


def no_round(t: int) -> bool:
    """Say that only the records are needed."""
    return False


def run_rounds(
    components: "Components", state: "State", needs_models: Callable[[int], bool] = every_round
) -> "Iterator[tuple[RoundRecord, State]]":
    """Run rounds until a stop rule holds; yield each record with the state after it.

    Args:
        components: What the simulation is made of.
        state: Where it stands.
        needs_models: Asked with the number of a round. Where it answers False, the models of the
            yielded state may already be those of the next round.
    """
    if components.trainer.returns_early and find_spec("dystop.simulator.pipeline"):
        from dystop.simulator.pipeline import simulate_overlapped

        return simulate_overlapped(components, state, needs_models)
    from dystop.simulator.loop import simulate

    return simulate(components, state)
