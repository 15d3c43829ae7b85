"""The contract of a plan, checked on every round: cheap, vectorised, and it names the offender."""

import math
from functools import reduce
from operator import or_

import numpy as np

from dystop.errors import PlanError
from dystop.kernels.plan_violations import (
    LOOSE,
    NEGATIVE,
    UNEVEN,
    UNSORTED,
    plan_violations,
    rows_within,
)
from dystop.parallel import as_readonly, run_in_blocks
from dystop.plan import Links, Mix, Plan, anywhere
from dystop.sparse import Bools, Ints
from dystop.types import Mechanism, View

_TOLERANCE = 1e-9
_ROWS = 1 << 15


def check_plan(mechanism: Mechanism, plan: Plan, view: View) -> None:
    """Raise PlanError if the plan breaks the contract; say which worker or link breaks it.

    A compiled walk over links and rows says whether there is anything to look at more closely; for
    millions of links that is all there is time for.
    """
    _check_active(mechanism, plan, view)
    _check_links(mechanism, plan, view)
    _check_notes(mechanism, plan, view)
    for stage, mix in enumerate(plan.mixes):
        doubt = _doubts(plan, view, stage)
        if doubt & UNSORTED:
            _check_shape(mechanism, mix)
        if doubt & (UNEVEN | NEGATIVE) or mix.kind == "delta":
            _check_rows(mechanism, mix)
        if doubt & LOOSE:
            _check_sources(mechanism, plan, view, stage)
        _check_background(mechanism, plan, stage)


def _doubts(plan: Plan, view: View, stage: int) -> int:
    """What a first look at a mix stage leaves open, as flags; all of them where it cannot look."""
    mix, linked = plan.mixes[stage], plan.links.of_stage(stage).by_receiver
    if not _compressed(mix, view.fleet.nodes):
        return UNSORTED | UNEVEN | NEGATIVE | LOOSE
    rows, pulls = (
        (as_readonly(mix.indptr), as_readonly(mix.source)),
        (as_readonly(linked[0]), as_readonly(linked[1])),
    )
    receiver, weight, found = as_readonly(mix.receiver), as_readonly(mix.weight), []

    def look(lo: int, hi: int) -> None:
        found.append(plan_violations(receiver, rows, weight, pulls, _TOLERANCE, (lo, hi)))

    run_in_blocks(look, len(receiver), _ROWS)
    return reduce(or_, found, 0)


def _compressed(mix: Mix, nodes: int) -> bool:
    """Whether the arrays of a mix fit together, as `mix_of` makes them, for nodes that exist."""
    receiver, indptr = mix.receiver, mix.indptr
    return bool(
        len(indptr) == len(receiver) + 1
        and indptr[0] == 0
        and indptr[-1] == len(mix.source) == len(mix.weight)
        and (np.diff(indptr) >= 0).all()
        and (np.diff(receiver) > 0).all()
        and receiver.min(initial=0) >= 0
        and receiver.max(initial=-1) < nodes
    )


def _refuse(mechanism: Mechanism, what: str, round_: int | None = None) -> None:
    when = f" in round {round_}" if round_ is not None else ""
    raise PlanError(f"mechanism {mechanism.name!r}{when}: {what}")


def _check_active(mechanism: Mechanism, plan: Plan, view: View) -> None:
    active = plan.active
    if not len(active):
        _refuse(mechanism, "no worker is active; a plan must activate at least one", view.t)
    if active.min() < 0 or active.max() >= view.fleet.workers:
        _refuse(mechanism, f"active worker outside 0..{view.fleet.workers - 1}", view.t)
    if np.bincount(active).max() > 1:
        _refuse(mechanism, "a worker is active twice", view.t)
    if not view.alive[active].all():
        dead = int(active[~view.alive[active]][0])
        _refuse(mechanism, f"worker {dead} is active but absent", view.t)
    if plan.steps is not None and (len(plan.steps) != len(active) or plan.steps.min() < 0):
        _refuse(mechanism, "steps must be one non-negative number per active worker", view.t)
    if plan.rate is not None and (len(plan.rate) != len(active) or not (plan.rate >= 0).all()):
        _refuse(mechanism, "rate must be one non-negative number per active worker", view.t)


def _check_links(mechanism: Mechanism, plan: Plan, view: View) -> None:
    links = plan.links
    if not _all_in_reach(links, view):
        _name_bad_link(mechanism, links, view)
    if anywhere(links.delta) and not mechanism.capabilities().deltas:
        _refuse(mechanism, "a link carries an update, but `capabilities` does not declare `deltas`")


def _all_in_reach(links: Links, view: View) -> bool:
    try:
        indptr, src = links.by_receiver
    except IndexError:  # an id that cannot be
        return False
    if len(indptr) > len(view.reach.indptr):
        return False
    inner, outer = (
        (as_readonly(indptr), as_readonly(src)),
        (as_readonly(view.reach.indptr), as_readonly(view.reach.src)),
    )
    found: list[bool] = []
    run_in_blocks(
        lambda lo, hi: found.append(rows_within(inner, outer, lo, hi)), len(indptr) - 1, _ROWS
    )
    return all(found)


def _name_bad_link(mechanism: Mechanism, links: Links, view: View) -> None:
    _check_nodes(mechanism, view, "a link", links.dst, links.src)
    k = int(np.flatnonzero(view.reach.find(links.dst, links.src) < 0)[0])
    pair = f"{links.src[k]} -> {links.dst[k]}"
    _refuse(mechanism, f"link {pair} is out of reach, dead or a self link", view.t)


def _check_notes(mechanism: Mechanism, plan: Plan, view: View) -> None:
    """Notes go into the records, which hold plain finite numbers."""
    for name, value in plan.notes.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            _refuse(mechanism, f"note {name!r} = {value!r} is not a plain finite number", view.t)


def _check_shape(mechanism: Mechanism, mix: Mix) -> None:
    """A receiver has one row, and a row names a source once, in id order (as `mix_of` does)."""
    if (np.diff(mix.receiver) <= 0).any():
        _refuse(mechanism, "a worker has two rows in one stage, or rows are not in id order")
    same_row = np.diff(mix.row_of) == 0
    if (same_row & (np.diff(mix.source) <= 0)).any():
        _refuse(mechanism, "a row names a source twice, or sources are not in id order")


def _check_background(mechanism: Mechanism, plan: Plan, stage: int) -> None:
    """A row that waits for a background link is mixed on arrival: own model and that one only."""
    if not anywhere(plan.links.background):
        return
    late = plan.links.background & (plan.links.stage == stage)
    if not late.any():
        return
    mix = plan.mixes[stage]
    base = int(max(mix.source.max(initial=0), plan.links.src.max())) + 1
    fed = _among(mix.dst * base + mix.source, plan.links.dst[late] * base + plan.links.src[late])
    rows = np.unique(mix.row_of[fed])
    pair = np.diff(mix.indptr)[rows] == 2
    own = np.bincount(mix.row_of[mix.dst == mix.source], minlength=len(mix.receiver))[rows] == 1
    if len(rows) and (mix.kind != "linear" or not (pair & own).all()):
        _refuse(mechanism, "a row fed by a background link must be linear, of self and that source")


def _check_nodes(mechanism: Mechanism, view: View, what: str, *nodes: Ints) -> None:
    """Refuse a node that does not exist, before pairs are told apart by a combined key."""
    for ids in nodes:
        if len(ids) and (ids.min() < 0 or ids.max() >= view.fleet.nodes):
            worst = int(ids.min()) if ids.min() < 0 else int(ids.max())
            _refuse(mechanism, f"{what} names node {worst} of {view.fleet.nodes}", view.t)


def _check_rows(mechanism: Mechanism, mix: Mix) -> None:
    if mix.kind == "delta":
        if not mechanism.capabilities().deltas:
            _refuse(mechanism, "a delta mix needs `deltas=True` in `capabilities`")
        return
    sums = np.bincount(mix.row_of, weights=mix.weight, minlength=len(mix.receiver))
    off = ~(np.abs(sums - 1.0) <= _TOLERANCE)  # this way round, so that NaN is off too
    if off.any():
        k = int(np.flatnonzero(off)[0])
        _refuse(mechanism, f"the row of worker {mix.receiver[k]} sums to {sums[k]:.12g}, not to 1")
    if not mechanism.capabilities().signed_rows and mix.weight.min(initial=0.0) < 0:
        _refuse(
            mechanism,
            "a mixing weight is negative; declare `signed_rows` in `capabilities` if it is meant",
        )


def source_kind(plan: Plan, view: View, stage: int) -> tuple[Bools, Bools]:
    """Which weights of a mix stage are fed by a link of this round, and which by the mailbox.

    A link wins over an older message of the same sender; what is neither is the own model.
    """
    mix, nodes = plan.mixes[stage], view.fleet.nodes
    key = mix.dst * nodes + mix.source
    here = plan.links.stage == stage
    linked = _among(key, _keys(plan.links.dst[here], plan.links.src[here], nodes))
    mailed = ~linked & _among(key, _keys(view.mailbox.dst, view.mailbox.src, nodes))
    own = mix.dst == mix.source
    return linked & ~own, mailed & ~own


def _joined(plan: Plan, stage: int, mix: Mix) -> Bools:
    """Which weights have both ends among the members of a collective, that is, of its links."""
    here = plan.links.stage == stage
    members = np.concatenate([plan.links.dst[here], plan.links.src[here]])
    return _among(mix.dst, members) & _among(mix.source, members)


def _among(keys: Ints, pool: Ints) -> Bools:
    """Which keys occur in the pool; one sort and a search, faster than np.isin on millions."""
    if not len(pool):
        return np.zeros(len(keys), bool)
    pool = np.sort(pool)
    at = np.minimum(np.searchsorted(pool, keys), len(pool) - 1)
    out: Bools = pool[at] == keys
    return out


def _keys(dst: Ints, src: Ints, nodes: int) -> Ints:
    return dst * nodes + src


def _check_sources(mechanism: Mechanism, plan: Plan, view: View, stage: int) -> None:
    mix = plan.mixes[stage]
    _check_nodes(mechanism, view, f"a row of stage {stage}", mix.receiver, mix.source)
    linked, mailed = source_kind(plan, view, stage)
    loose = ~(linked | mailed | (mix.dst == mix.source))
    if mix.collective:
        loose &= ~_joined(plan, stage, mix)
    if loose.any():
        k = int(np.flatnonzero(loose)[0])
        pair = f"{mix.source[k]} into {mix.dst[k]}"
        _refuse(mechanism, f"stage {stage} mixes {pair} without a link or a message", view.t)
