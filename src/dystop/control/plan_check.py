"""The contract of a plan, checked in every round; an error names the worker or link that breaks it.

A plan may have millions of links, so that it is read only once: `mix_violations` finds the rules
that a mix stage may break. Only for these rules, slower checks run that name the worker or link.
"""

import math

import numpy as np

from dystop.acceleration import accelerated
from dystop.errors import PlanError
from dystop.plan import Links, Mix, Plan
from dystop.sparse import Bools, Graph, Ints, Rows
from dystop.types import Mailbox, Mechanism, View

UNSORTED, UNEVEN, NEGATIVE, UNLINKED = 1, 2, 4, 8
ALL = UNSORTED | UNEVEN | NEGATIVE | UNLINKED
_TOLERANCE = 1e-9


def check_plan(mechanism: Mechanism, plan: Plan, view: View) -> None:
    """Raise PlanError if the plan breaks the contract; say which worker or link breaks it."""
    _check_active(mechanism, plan, view)
    _check_links(mechanism, plan, view)
    _check_notes(mechanism, plan, view)
    for stage, mix in enumerate(plan.mixes):
        facts = plan.links, view.mailbox, stage, view.fleet.nodes
        suspect = violations(mix, *facts, _TOLERANCE)
        if suspect & UNSORTED:
            _check_shape(mechanism, mix)
        if suspect & (UNEVEN | NEGATIVE) or mix.kind == "delta":
            _check_rows(mechanism, mix)
        if suspect & UNLINKED:
            _check_sources(mechanism, plan, view, stage)
        _check_background(mechanism, plan, stage)


@accelerated("dystop.kernels.mixing_rows:mix_violations")
def mix_violations(mix: Mix, linked: Rows, tolerance: float) -> int:
    """Return the rules that the rows of a mix may break, as a sum of flags; 0: none.

    UNSORTED: a source is not above the one before it. UNEVEN: the weights of a row do not sum to
    one. NEGATIVE: a weight is negative. UNLINKED: a source is neither the receiver itself nor the
    sender of one of its links.

    Args:
        mix: rows in compressed form.
        linked: the senders to each receiver, ascending.
        tolerance: by how much the sum of a row may differ from one.
    """
    before = np.append(-1, mix.source[:-1])
    before[mix.indptr[:-1][np.diff(mix.indptr) > 0]] = -1
    sums = np.bincount(mix.row_of, weights=mix.weight, minlength=len(mix.receiver))
    base = int(max(mix.source.max(initial=0), linked.value.max(initial=0))) + 1
    fed = _among(mix.dst * base + mix.source, linked.row_of * base + linked.value)
    holds = {
        UNSORTED: (mix.source <= before).any(),
        UNEVEN: (~(np.abs(sums - 1.0) <= tolerance)).any(),  # this form also catches NaN
        NEGATIVE: (mix.weight < 0).any(),
        UNLINKED: (~(fed & (mix.source >= 0)) & (mix.source != mix.dst)).any(),
    }
    return sum(flag for flag, found in holds.items() if found)


@accelerated("dystop.kernels.mixing_rows:violations", size=lambda mix, links, *_: len(links))
def violations(
    mix: Mix, links: Links, mailbox: Mailbox, stage: int, nodes: int, tolerance: float
) -> int:
    """Return the rules that the rows of a mix stage may break, as flags.

    A source that a message brings is not UNLINKED. Where the arrays of the mix do not fit together,
    all rules may be broken.
    """
    if not _is_compressed(mix, nodes):
        return ALL
    flags = mix_violations(mix, links.of_stage(stage).by_receiver, tolerance)
    if not flags & UNLINKED and mix.source.max(initial=-1) < nodes:
        return flags
    linked, mailed = sources_of(mix, links, mailbox, stage, nodes)
    exists = (mix.source >= 0) & (mix.source < nodes)
    unknown = ~(linked | mailed | (mix.source == mix.dst)) | ~exists
    return flags & ~UNLINKED | (UNLINKED if unknown.any() else 0)


def _is_compressed(mix: Mix, nodes: int) -> bool:
    """Return whether the arrays of a mix fit together, as `mix_of` makes them, and nodes exist."""
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
    """Refuse an active set that is empty, repeats a worker or names an absent one."""
    active = plan.active
    if len(active) == 1 and plan.steps is None and plan.rate is None:
        only = int(active[0])
        if 0 <= only < view.fleet.workers and view.alive[only]:
            return
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
    """Refuse links out of reach, and undeclared links that carry updates."""
    links = plan.links
    if not all_in_reach(view.reach, links):
        _name_bad_link(mechanism, links, view)
    if np.count_nonzero(links.delta) and not mechanism.capabilities().deltas:
        _refuse(mechanism, "a link carries an update, but `capabilities` does not declare `deltas`")


@accelerated("dystop.kernels.pairs:all_in_reach")
def all_in_reach(reach: Graph, links: Links) -> bool:
    """Return whether every link is an edge of the reach graph."""
    return bool((reach.find(links.dst, links.src) >= 0).all())


def _name_bad_link(mechanism: Mechanism, links: Links, view: View) -> None:
    """Refuse the first link that is not in reach."""
    _check_nodes(mechanism, view, "a link", links.dst, links.src)
    k = int(np.flatnonzero(view.reach.find(links.dst, links.src) < 0)[0])
    pair = f"{links.src[k]} -> {links.dst[k]}"
    _refuse(mechanism, f"link {pair} is out of reach, has an absent end or is a self link", view.t)


def _check_notes(mechanism: Mechanism, plan: Plan, view: View) -> None:
    """Refuse notes that a record cannot hold: it stores plain finite numbers."""
    for name, value in plan.notes.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            _refuse(mechanism, f"note {name!r} = {value!r} is not a plain finite number", view.t)


def _check_shape(mechanism: Mechanism, mix: Mix) -> None:
    """Refuse unsorted or repeated receivers, and unsorted or repeated sources of a row."""
    if (np.diff(mix.receiver) <= 0).any():
        _refuse(mechanism, "a worker has two rows in one stage, or rows are not in id order")
    same_row = np.diff(mix.row_of) == 0
    if (same_row & (np.diff(mix.source) <= 0)).any():
        _refuse(mechanism, "a row names a source twice, or sources are not in id order")


def _check_background(mechanism: Mechanism, plan: Plan, stage: int) -> None:
    """Refuse a row with a background link unless it mixes only that link and the own model."""
    if not np.count_nonzero(plan.links.background):
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
        _refuse(
            mechanism, "a row with a background link must be linear, with that source and self only"
        )


def _check_nodes(mechanism: Mechanism, view: View, what: str, *nodes: Ints) -> None:
    """Refuse a node that does not exist; combined keys of pairs need valid ids."""
    for ids in nodes:
        if len(ids) and (ids.min() < 0 or ids.max() >= view.fleet.nodes):
            worst = int(ids.min()) if ids.min() < 0 else int(ids.max())
            _refuse(mechanism, f"{what} names node {worst} of {view.fleet.nodes}", view.t)


def _check_rows(mechanism: Mechanism, mix: Mix) -> None:
    """Refuse weights that do not sum to one or are negative, and undeclared updates."""
    if mix.kind == "delta":
        if not mechanism.capabilities().deltas:
            _refuse(mechanism, "a delta mix needs `deltas=True` in `capabilities`")
        return
    sums = np.bincount(mix.row_of, weights=mix.weight, minlength=len(mix.receiver))
    off = ~(np.abs(sums - 1.0) <= _TOLERANCE)  # this form also catches NaN
    if off.any():
        k = int(np.flatnonzero(off)[0])
        _refuse(mechanism, f"the row of worker {mix.receiver[k]} sums to {sums[k]:.12g}, not to 1")
    if not mechanism.capabilities().signed_rows and mix.weight.min(initial=0.0) < 0:
        _refuse(
            mechanism,
            "a mixing weight is negative; declare `signed_rows` in `capabilities` to allow it",
        )


def source_kind(plan: Plan, view: View, stage: int) -> tuple[Bools, Bools]:
    """Return which weights of a mix stage apply to a link of this round, and which to a message.

    A link takes precedence over an older message of the same sender. All other weights apply to the
    own model.
    """
    return sources_of(plan.mixes[stage], plan.links, view.mailbox, stage, view.fleet.nodes)


@accelerated("dystop.kernels.mixing_rows:sources_of", size=lambda mix, links, *_: len(links))
def sources_of(
    mix: Mix, links: Links, mailbox: Mailbox, stage: int, nodes: int
) -> tuple[Bools, Bools]:
    """Return which weights of a mix apply to a link of its stage, and which to a message."""
    key = mix.dst * nodes + mix.source
    here = links.stage == stage
    linked = _among(key, _keys(links.dst[here], links.src[here], nodes))
    mailed = ~linked & _among(key, _keys(mailbox.dst, mailbox.src, nodes))
    own = mix.dst == mix.source
    return linked & ~own, mailed & ~own


def _joined(plan: Plan, stage: int, mix: Mix) -> Bools:
    """Return which weights have both ends among the ends of the links of a collective stage."""
    here = plan.links.stage == stage
    members = np.concatenate([plan.links.dst[here], plan.links.src[here]])
    return _among(mix.dst, members) & _among(mix.source, members)


def _among(keys: Ints, pool: Ints) -> Bools:
    """Return which keys occur in the pool; faster than np.isin on millions of keys."""
    if not len(pool):
        return np.zeros(len(keys), bool)
    pool = np.sort(pool)
    at = np.minimum(np.searchsorted(pool, keys), len(pool) - 1)
    out: Bools = pool[at] == keys
    return out


def _keys(dst: Ints, src: Ints, nodes: int) -> Ints:
    return dst * nodes + src


def _check_sources(mechanism: Mechanism, plan: Plan, view: View, stage: int) -> None:
    """Refuse a source that neither a link nor a message brings."""
    mix = plan.mixes[stage]
    _check_nodes(mechanism, view, f"a row of stage {stage}", mix.receiver, mix.source)
    linked, mailed = source_kind(plan, view, stage)
    unlinked = ~(linked | mailed | (mix.dst == mix.source))
    if mix.collective:
        unlinked &= ~_joined(plan, stage, mix)
    if unlinked.any():
        k = int(np.flatnonzero(unlinked)[0])
        pair = f"{mix.source[k]} into {mix.dst[k]}"
        _refuse(mechanism, f"stage {stage} mixes {pair} without a link or a message", view.t)
