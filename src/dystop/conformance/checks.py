"""How a mechanism fails: one error that says who, where and what."""

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


class ConformanceError(AssertionError):
    """A mechanism does not do what every mechanism must do."""


@dataclass(frozen=True)
class Place:
    """Where a mechanism is being looked at, written so that it can be typed in again."""

    mechanism: Mechanism
    where: str  # as in "on random_view(17, 3)"

    def fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise the error."""
        name = getattr(self.mechanism, "name", type(self.mechanism).__name__)
        raise ConformanceError(f"mechanism {name!r} {self.where}: {what}") from cause

    def require(self, holds: object, what: str) -> None:
        """Raise the error unless something holds."""
        if not holds:
            self.fail(what)


# MERGED: Single promises of a mechanism, each held against a single view.


_TOLERANCE = 1e-9


def planned(place: Place, memory: Memory, view: View) -> tuple[Plan, Memory]:
    """Ask the mechanism for a plan; whatever it raises is a failure."""
    try:
        answer = place.mechanism.plan(memory, view)
    except Exception as error:  # a stranger's code may raise anything
        place.fail(f"plan raised {type(error).__name__}: {error}", error)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Plan)):
        place.fail(f"plan must return (Plan, memory), not {type(answer).__name__}")
    plan, later = answer
    place.require(isinstance(later, Mapping), "the memory that plan returns must be a mapping")
    return plan, later


def check_contract(place: Place, plan: Plan, view: View) -> None:
    """Active workers present, links in reach, rows that sum to one, every weight backed."""
    try:
        check_plan(place.mechanism, plan, view)
    except PlanError as error:
        place.fail(str(error).partition(": ")[2], error)
    except Exception as error:  # arrays of a wrong kind or length
        place.fail(f"the plan cannot be read ({type(error).__name__}: {error})", error)
    links = plan.links
    keys = list(zip(links.dst.tolist(), links.src.tolist(), links.stage.tolist(), strict=True))
    place.require(len(keys) == len(set(keys)), "a link occurs twice in one stage")
    # More than 1 is meant: a ring all-reduce moves almost two models over each of its links.
    share = (links.fraction > 0) & np.isfinite(links.fraction)
    place.require(share.all(), "the fraction of a model that a link carries must be above 0")
    for stage, mix in enumerate(plan.mixes):
        place.require(np.isfinite(mix.weight).all(), f"a weight of stage {stage} is not finite")
        once = len(np.unique(mix.receiver)) == len(mix.receiver)
        place.require(once, f"a worker has two rows in stage {stage}")
    for name, note in plan.notes.items():
        place.require(isinstance(note, float), f"note {name!r} must be a float, not {note!r}")


def check_payers(place: Place, plan: Plan, view: View) -> None:
    """Somebody must wait for every transfer: the active receiver of a pull or sender of a push."""
    links = plan.links
    payer = np.where(links.pushed, links.src, links.dst)
    free = ~links.background & ~np.isin(payer, plan.active) & (payer < view.fleet.workers)
    if free.any():
        k = int(np.flatnonzero(free)[0])
        kind = "push" if links.pushed[k] else "pull"
        place.fail(
            f"{kind} {links.src[k]} -> {links.dst[k]} costs nobody time, since worker {payer[k]} is"
            " not active; let the other end pay (`pushed`), or say `background`"
        )


def dense(mix: Mix, nodes: int) -> Floats:
    """A mix stage as a dense matrix; a node without a row keeps its model."""
    out = np.eye(nodes)
    out[mix.receiver] = 0.0
    np.add.at(out, (mix.dst, mix.source), mix.weight)
    return out


def check_declared(place: Place, plan: Plan, view: View) -> None:
    """What the class says about its rows and its bandwidth."""
    able = place.mechanism.capabilities()
    if able.doubly_stochastic:
        _check_columns(place, plan, view)
    if able.budgeted:
        _check_budget(place, plan, view)


def _check_columns(place: Place, plan: Plan, view: View) -> None:
    """Columns that sum to one, hence a mean model that mixing does not move."""
    for stage, mix in enumerate(plan.mixes):
        if mix.kind == "delta":
            continue
        sums = dense(mix, view.fleet.nodes).sum(axis=0)
        off = np.abs(sums - 1.0)
        if off.max() > _TOLERANCE:
            j = int(off.argmax())
            place.fail(
                f"declared doubly stochastic, but the models of stage {stage} use worker {j}"
                f" {sums[j]:.12g} times in all, not once; the mean model would move"
            )


def _check_budget(place: Place, plan: Plan, view: View) -> None:
    """B_t^i, the models that a node sends and receives, within its budget."""
    links, nodes = plan.links, view.fleet.nodes
    use = np.bincount(links.dst, links.fraction, nodes)
    use += np.bincount(links.src, links.fraction, nodes)
    over = np.flatnonzero(use > view.budget + _TOLERANCE)
    if len(over):
        i = int(over[0])
        place.fail(
            f"declared `budgeted`, but node {i} moves {use[i]:g} models of its {view.budget[i]:g}"
        )


def check_repeatable(place: Place, memory: Memory, view: View) -> None:
    """The same plan from the same view, and the memory that was passed in left as it was."""
    before = copy.deepcopy(dict(memory))
    first = planned(place, memory, view)
    place.require(same(dict(memory), before), "plan changed the memory that it was given")
    again = planned(place, memory, view)
    place.require(same(first[0], again[0]), "two plans for one view differ; draw from view.rng")
    place.require(same(dict(first[1]), dict(again[1])), "two memories for one view differ")


def check_restored(place: Place, memory: Memory, restored: Any, view: View) -> None:
    """Memory that comes back from a checkpoint leads to the same plan."""
    place.require(
        isinstance(restored, Mapping) and same(dict(restored), dict(memory)),
        "its memory does not come back from a checkpoint as it went in; it may hold dicts with"
        " text or numbers as keys, lists, arrays, numbers, text and None",
    )
    plan, again = planned(place, memory, view)[0], planned(place, restored, view)[0]
    place.require(same(plan, again), "memory from a checkpoint leads to another plan")
