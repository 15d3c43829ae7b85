"""Pushed models: sending them, mixing them in on arrival, and emptying mailboxes.

A message holds the number of a snapshot; the snapshots lie beside the other models (`Models`).
"""

import numpy as np
from torch import Tensor

from dystop.acceleration import accelerated
from dystop.plan import Links, Mix
from dystop.simulator.mixing.stage import Sent
from dystop.simulator.model_stack import Models, published_row, write_rows
from dystop.simulator.state import State
from dystop.sparse import Bools, Floats, Ints, ints, mask_of
from dystop.types import View
from dystop.world import InFlight, Messages, Progress, RealisedPlan

SPARE = 16  # snapshots that may stay although no message carries them
_EVERYBODY = np.ones(0, bool)  # nobody asks who is done where models are published at once
_FEW_MESSAGES = 64  # whose snapshots are looked through in every round


def spare_bytes(row_bytes: int, *, starts: bool) -> int:
    """Return the bytes of snapshots that may stay although no message carries them.

    Args:
        row_bytes: Of one model.
        starts: Whether the start of the training behind each model is kept, too.
    """
    return SPARE * (1 + starts) * row_bytes


def deliver(state: State) -> State:
    """Mix in the background messages that have arrived; keep the newest message per sender."""
    now_s, in_flight = state.control.clock_s, state.progress.in_flight
    if not len(in_flight):
        return state
    is_due = in_flight.due(now_s)
    if is_due is not None:
        due = in_flight.take(is_due).messages()
        for k in np.argsort(due.arrival_s, kind="stable"):
            _mix_on_arrival(state, int(due.dst[k]), int(due.snapshot[k]), float(due.weight[k]))
        in_flight = in_flight.take(~is_due)
    return _with_in_flight(state, in_flight.delivered(now_s))


def _mix_on_arrival(state: State, dst: int, snapshot: int, weight: float) -> None:
    done = state.done
    own = published_row(state.models, done, dst)
    row = (1.0 - weight) * own + weight * state.models.snapshots[snapshot]
    write_rows(state.models, ints([dst]), row[None], np.ones(1, bool), ~done[[dst]])


def send(
    state: State,
    view: View,
    realised: RealisedPlan,
    stage: int,
    rows: Mix | None,
    changed: Sent,
) -> State:
    """Send what no row of this stage uses now: pushes to mailboxes and background links.

    `changed` holds what nodes send in place of their models.
    """
    links = realised.plan.links
    sent, weight = to_send(links, NO_ROWS if rows is None else rows, stage, realised.lost)
    if not len(sent):
        return state
    snapshots, made = _take_snapshots(
        state, realised.plan.active, links.src[sent], links.delta[sent], changed
    )
    messages = Messages(
        arrival_s=view.now_s + realised.arrival_s[sent],
        dst=links.dst[sent],
        src=links.src[sent],
        version=finished_trainings(view.version, realised.plan.active, links.src[sent], view.t),
        sent=np.full(len(sent), view.t),
        snapshot=snapshots,
        weight=weight,
    )
    state = _with_in_flight(state, state.progress.in_flight.add(messages))
    return state._replace(snapshots_made=made)


def _feed_rows_only(links: Links, rows: Mix) -> bool:
    """Return whether the links of a stage are those that its rows name: none is a push.

    Both are sorted by receiver and source, so that millions of links are compared quickly.
    """
    if np.count_nonzero(links.background):
        return False
    dst = rows.dst
    foreign = rows.source != dst
    if len(links) != np.count_nonzero(foreign):
        return False
    linked = links.by_receiver
    same_source = np.array_equal(rows.source[foreign], linked.value)
    return same_source and np.array_equal(dst[foreign], linked.row_of)


NO_ROWS = Mix(ints([]), ints([0]), ints([]), np.zeros(0))


@accelerated("dystop.kernels.mixing_rows:to_send", size=lambda links, *_: len(links))
def to_send(links: Links, rows: Mix, stage: int, lost: Bools) -> tuple[Ints, Floats]:
    """Return the links of a stage that its rows do not use now: pushes and background links.

    Args:
        links: Of the round.
        rows: Of the stage.
        stage: Its number.
        lost: Which transfers fail, [L].

    Returns:
        (numbers of the links, weight at which each is mixed in on arrival). The weight is NaN for a
        push, which waits in a mailbox.
    """
    if _feed_rows_only(links.of_stage(stage), rows):
        return ints([]), np.zeros(0)
    used, weight = _use_of(links, rows)
    here = (links.stage == stage) & ~lost
    sent = np.flatnonzero(here & (links.background | ~used))
    return sent, np.where(links.background[sent], weight[sent], np.nan)


def _use_of(links: Links, rows: Mix) -> tuple[Bools, Floats]:
    """Return which links feed a row, and with which weight; NaN for the others."""
    if not len(rows.source):
        return np.zeros(len(links), bool), np.full(len(links), np.nan)
    nodes = int(max(rows.source.max(), links.src.max(initial=0))) + 1
    keys, wanted = rows.dst * nodes + rows.source, links.dst * nodes + links.src
    order = np.argsort(keys)
    at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    used = keys[at] == wanted
    return used, np.where(used, rows.weight[at], np.nan)


@accelerated("dystop.kernels.mailboxes:finished_trainings")
def finished_trainings(version: Ints, active: Ints, src: Ints, t: int) -> Ints:
    """Return the trainings that each sender has finished; an active one has just finished one.

    The version of a server is the round.
    """
    n = len(version)
    finished = version[np.minimum(src, n - 1)] + mask_of(n + 1, active)[src]
    return np.where(src < n, finished, t)


def _take_snapshots(
    state: State, active: Ints, src: Ints, delta: Bools, changed: Sent
) -> tuple[Ints, int]:
    """Copy each model (or update) that is pushed once, however many nodes receive it."""
    models = state.models
    key = 2 * src + delta
    if not np.count_nonzero(key != key[0]):
        what, which = key[:1], np.zeros(len(key), np.int64)
    else:
        what, which = np.unique(key, return_inverse=True)
    # An active sender has waited for its own training; any other hands out what is finished.
    done = _EVERYBODY
    if models.finished is not None:
        done = state.done
        done[active] = True
    for k, (node, update) in enumerate(divmod(key, 2) for key in what.tolist()):
        number = state.snapshots_made + k
        origin = _origin(models, done, node)
        if update and node in changed.updates:
            row = changed.updates[node].clone()
        else:
            is_changed = node in changed.models
            row = changed.models[node] if is_changed else published_row(models, done, node)
            row = row - origin if update and origin is not None else row.clone()
        models.snapshots[number] = row
        if origin is not None:
            models.origins[number] = origin.clone()
    return state.snapshots_made + which, state.snapshots_made + len(what)


def _origin(models: Models, done: Bools, node: int) -> Tensor | None:
    """Return where the training behind the model that a node hands out began, if that is kept."""
    if models.start is None:
        return None
    if models.finished_start is None or done[node]:
        return models.start[node]
    return models.finished_start[node]


def consume(state: State, view: View, realised: RealisedPlan) -> State:
    """Empty the mailboxes of the active workers, unless the plan keeps them."""
    in_flight, plan = state.progress.in_flight, realised.plan
    if plan.keep_mail or not len(in_flight):
        return state
    return _with_in_flight(state, in_flight.without(plan.active, view.now_s))


def _with_in_flight(state: State, in_flight: InFlight) -> State:
    """Replace the messages in flight by some of them; drop snapshots that none of them carries.

    Where many messages wait, a few such snapshots may stay: finding them takes longer than a round.
    """
    models, before = state.models, state.progress.in_flight
    if in_flight is before:
        return state
    is_many = len(models.snapshots) > before.snapshots_kept + SPARE
    if len(in_flight) < len(before) and (is_many or len(in_flight) <= _FEW_MESSAGES):
        kept = ints(list(models.snapshots))
        is_carried = mask_of(state.snapshots_made, in_flight.snapshot)
        for number in kept[~is_carried[kept]].tolist():
            del models.snapshots[number]
            models.origins.pop(number, None)
        in_flight.snapshots_kept = len(models.snapshots)
    progress = Progress(state.progress.started_s, state.progress.training_s, in_flight)
    return state._replace(progress=progress)
