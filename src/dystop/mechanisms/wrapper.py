"""Mechanisms that change the plans of another one."""

from dataclasses import dataclass
from typing import Any

from dystop.carried import Values
from dystop.control.plan_check import check_plan
from dystop.plan import Plan
from dystop.sparse import Graph
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class Wrapper(Mechanism):
    """A mechanism that changes the plans of another one, and is otherwise like it.

    A subclass implements `changed`. Its constructor refuses mechanisms that it cannot change.
    """

    inner: Mechanism

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the mechanism inside."""
        return self.inner.name

    @property
    def provenance(self) -> str:  # type: ignore[override]
        """Where the mechanism inside comes from."""
        return self.inner.provenance

    def capabilities(self) -> Capabilities:
        """Return what the mechanism inside needs and guarantees."""
        return self.inner.capabilities()

    def init(self, fleet: Fleet) -> Memory:
        """Return the memory of the mechanism inside."""
        return self.inner.init(fleet)

    def base_graph(self, memory: Memory, view: View) -> Graph | None:
        """Return the graph of the mechanism inside."""
        return self.inner.base_graph(memory, view)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Check the plan of the mechanism inside, and change it."""
        plan, memory = self.inner.plan(memory, view)
        check_plan(self.inner, plan, view)
        return self.changed(plan, view), memory

    def after_mixing(self, own: Values, mixed: Values, dt: Any) -> Values:
        """Let the mechanism inside change carried vectors."""
        return self.inner.after_mixing(own, mixed, dt)

    def correction(self, carried: Values) -> Any:
        """Return the correction of the mechanism inside."""
        return self.inner.correction(carried)

    def after_training(
        self, start: Any, trained: Any, carried: Values, steps: Any, rate: Any
    ) -> Values:
        """Let the mechanism inside change carried vectors."""
        return self.inner.after_training(start, trained, carried, steps, rate)

    def changed(self, plan: Plan, view: View) -> Plan:
        """Return the changed plan."""
        raise NotImplementedError(f"{type(self).__name__} must implement `changed`")
