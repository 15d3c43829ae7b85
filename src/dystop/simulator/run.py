"""A simulation: rounds in turn, or many side by side where that gives the same records."""

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


def is_pipelined(components: "Components") -> bool:
    """Return whether rounds run side by side."""
    trainer = components.trainer
    helps = trainer.returns_early or trainer.rows_independent
    return components.engine.ahead and helps and find_spec("dystop.simulator.pipeline") is not None


def run_rounds(
    components: "Components", state: "State", needs_models: Callable[[int], bool] = every_round
) -> "Iterator[tuple[RoundRecord, State]]":
    """Run rounds until a stop rule holds; yield each record with the state after it.

    Args:
        components: What the simulation is made of.
        state: Where it stands.
        needs_models: Asked with the number of a round. Where it answers False, the models of the
            yielded state may already be those of a later round.
    """
    if is_pipelined(components):
        from dystop.simulator.pipeline import simulate_ahead

        return simulate_ahead(components, state, needs_models)
    from dystop.simulator.round import simulate

    return simulate(components, state)
