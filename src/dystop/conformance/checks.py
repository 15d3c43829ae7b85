"""Single requirements on a mechanism, each checked on one view, and the error for a broken one."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dystop.conformance.views import same
from dystop.control.plan_check import check_plan
from dystop.errors import PlanError
from dystop.plan import Mix, Plan
from dystop.sparse import Floats
from dystop.types import Mechanism, Memory, View

_TOLERANCE = 1e-9  # of sums of weights and models


class ConformanceError(AssertionError):
    """A mechanism breaks a requirement on all mechanisms."""


@dataclass(frozen=True)
class CheckContext:
    """The mechanism under test and the view or run it is tested on, for error messages."""

    mechanism: Mechanism
    where: str  # code that builds the view again, as in "on random_view(17, 3)"

    def fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise a ConformanceError."""
        name = getattr(self.mechanism, "name", type(self.mechanism).__name__)
        raise ConformanceError(f"mechanism {name!r} {self.where}: {what}") from cause

    def require(self, holds: object, what: str) -> None:
        """Raise a ConformanceError unless the condition holds."""
        if not holds:
            self.fail(what)


def planned(context: CheckContext, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Return the mechanism's plan and memory; any exception is a failure."""
    try:
        answer = context.mechanism.plan(memory, view)
    except Exception as error:  # user code may raise anything
        context.fail(f"plan raised {type(error).__name__}: {error}", error)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Plan)):
        context.fail(f"plan must return (Plan, memory), not {type(answer).__name__}")
    plan, later = answer
    context.require(isinstance(later, Mapping), "the memory that plan returns must be a mapping")
    return plan, later


def check_contract(context: CheckContext, plan: Plan, view: View) -> None:
    """Require a valid plan, links that are unique within a stage, and finite weights and notes."""
    try:
        check_plan(context.mechanism, plan, view)
    except PlanError as error:
        context.fail(str(error).partition(": ")[2], error)
    except Exception as error:  # arrays of a wrong kind or length
        context.fail(f"the plan cannot be read ({type(error).__name__}: {error})", error)
    links = plan.links
    keys = list(zip(links.dst.tolist(), links.src.tolist(), links.stage.tolist(), strict=True))
    context.require(len(keys) == len(set(keys)), "a link occurs twice in one stage")
    # A fraction above 1 is allowed: a ring all-reduce moves almost two models over each link.
    share = (links.fraction > 0) & np.isfinite(links.fraction)
    context.require(share.all(), "the fraction of a model that a link carries must be above 0")
    for stage, mix in enumerate(plan.mixes):
        context.require(np.isfinite(mix.weight).all(), f"a weight of stage {stage} is not finite")
        once = len(np.unique(mix.receiver)) == len(mix.receiver)
        context.require(once, f"a worker has two rows in stage {stage}")
    for name, note in plan.notes.items():
        context.require(isinstance(note, float), f"note {name!r} must be a float, not {note!r}")


def check_payers(context: CheckContext, plan: Plan, view: View) -> None:
    """Require that an active worker waits for every transfer: the puller, or the pusher."""
    links = plan.links
    payer = np.where(links.pushed, links.src, links.dst)
    free = ~links.background & ~np.isin(payer, plan.active) & (payer < view.fleet.workers)
    if free.any():
        k = int(np.flatnonzero(free)[0])
        kind = "push" if links.pushed[k] else "pull"
        context.fail(
            f"{kind} {links.src[k]} -> {links.dst[k]} costs nobody time, since worker {payer[k]} is"
            " not active; let the other end wait (`pushed`), or set `background`"
        )


def dense(mix: Mix, nodes: int) -> Floats:
    """Return a mix stage as a dense matrix; a node without a row keeps its model."""
    out = np.eye(nodes)
    out[mix.receiver] = 0.0
    np.add.at(out, (mix.dst, mix.source), mix.weight)
    return out


def check_declared(context: CheckContext, plan: Plan, view: View) -> None:
    """Check what `capabilities` declares about mixing weights and bandwidth."""
    able = context.mechanism.capabilities()
    if able.doubly_stochastic:
        _check_columns(context, plan, view)
    if able.budgeted:
        _check_budget(context, plan, view)


def _check_columns(context: CheckContext, plan: Plan, view: View) -> None:
    """Require columns that sum to one; then mixing keeps the mean model."""
    for stage, mix in enumerate(plan.mixes):
        if mix.kind == "delta":
            continue
        sums = dense(mix, view.fleet.nodes).sum(axis=0)
        off = np.abs(sums - 1.0)
        if off.max() > _TOLERANCE:
            j = int(off.argmax())
            context.fail(
                f"declared doubly stochastic, but column {j} of stage {stage} sums to"
                f" {sums[j]:.12g}, not to 1; the mean model would move"
            )


def _check_budget(context: CheckContext, plan: Plan, view: View) -> None:
    """Require that no node sends and receives more models than its budget, B_t^i."""
    links, nodes = plan.links, view.fleet.nodes
    use = np.bincount(links.dst, links.fraction, nodes)
    use += np.bincount(links.src, links.fraction, nodes)
    over = np.flatnonzero(use > view.budget + _TOLERANCE)
    if len(over):
        i = int(over[0])
        context.fail(
            f"declared `budgeted`, but node {i} moves {use[i]:g} models; its budget is"
            f" {view.budget[i]:g}"
        )


def check_repeatable(context: CheckContext, memory: Memory, view: View) -> None:
    """Require equal plans from equal views, and an unchanged memory argument."""
    before = copy.deepcopy(dict(memory))
    first = planned(context, memory, view)
    context.require(same(dict(memory), before), "plan changed its memory argument")
    again = planned(context, memory, view)
    context.require(same(first[0], again[0]), "two plans for one view differ; draw from view.rng")
    context.require(same(dict(first[1]), dict(again[1])), "two memories for one view differ")


def check_restored(context: CheckContext, memory: Memory, restored: Any, view: View) -> None:
    """Require that memory survives a checkpoint and then leads to the same plan."""
    context.require(
        isinstance(restored, Mapping) and same(dict(restored), dict(memory)),
        "a checkpoint changes its memory; memory may hold dicts with text or numbers as keys,"
        " lists, arrays, numbers, text and None",
    )
    plan, again = planned(context, memory, view)[0], planned(context, restored, view)[0]
    context.require(same(plan, again), "memory from a checkpoint leads to another plan")
