"""Carry out a plan on the models of all nodes: transfers, mixing, and new local trainings."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dystop.control.aggregation import renormalise_lost
from dystop.control.plan_check import source_kind
from dystop.control.time_spent import total_of
from dystop.plan import Mix, Plan
from dystop.simulator import mailbox
from dystop.simulator.carrying import after_mixing, mix_own_rows, vectors_before
from dystop.simulator.exchange import sent as sent_in_stage
from dystop.simulator.mixing.rules import combined_rows
from dystop.simulator.mixing.stage import Sent, Sources, all_fresh
from dystop.simulator.model_stack import index, link_distances, write_rows
from dystop.simulator.state import Components, State
from dystop.sparse import Bools, Floats, Ints, mask_of
from dystop.training.problem import Trained
from dystop.types import Outcome, View
from dystop.world import Progress, RealisedPlan

Losses = Floats | Callable[[], Floats]
"""Of the trainings that were started; a callable waits for the device."""


def execute(
    components: Components, state: State, view: View, plan: Plan, realised: RealisedPlan
) -> tuple[Outcome, Losses, State]:
    """Move models, mix them and train those of the active workers; do not wait for a device.

    The losses of the outcome are NaN until `write_losses` has waited for them.
    """
    models, active = state.models, realised.plan.active
    before = None
    if models.finished is not None:
        models.trainings.finish(active)
        before = models.latest[index(active, models.latest)].clone()
    asks = "distance" in components.capabilities.needs
    distance = _distances(state, realised) if asks else None
    vectors = vectors_before(components, models, active)
    state = _mix(components, state, view, realised)
    after_mixing(components, state, active, vectors)
    trained = _train(components, state, view, realised)
    if models.finished is not None and before is not None:
        models.finished[index(active, models.latest)] = before
    outcome = outcome_of(plan, realised, trained.samples, distance)
    return outcome, trained.losses, state


def write_losses(outcome: Outcome, losses: Losses) -> None:
    """Wait for the losses of a round and write them into its outcome; who failed has none."""
    outcome.loss[~outcome.failed] = losses() if callable(losses) else losses


def outcome_of(
    plan: Plan, realised: RealisedPlan, samples: int, distance: Floats | None = None
) -> Outcome:
    """Return what happened in a round, without losses: they are NaN."""
    spent = total_of(realised.spent)
    return Outcome(
        duration_s=realised.duration_s,
        comm_s=realised.comm_s,
        link_s=realised.link_s,
        link_bytes=realised.link_bytes,
        lost=realised.lost,
        loss=np.full(len(plan.active), np.nan),
        samples=samples,
        idle_s=realised.idle_s,
        active=plan.active,
        dst=plan.links.dst,
        src=plan.links.src,
        failed=realised.failed,
        distance=distance,
        compute_s=spent.compute_s,
        transfer_s=spent.transfer_s,
        wait_others_s=spent.wait_others_s,
    )


def _mix(components: Components, state: State, view: View, realised: RealisedPlan) -> State:
    """Run all stages of mixing, and send and consume messages on the way."""
    mixes = realised.plan.mixes
    for stage in range(max(len(mixes), realised.plan.links.stage_count)):
        rows = mixes[stage] if stage < len(mixes) else None
        sent = sent_in_stage(components, state, view, realised, stage)
        state = mailbox.send(state, view, realised, stage, rows, sent)
        if rows is not None and components.engine.train:
            _mix_stage(components, state, view, realised, stage, sent)
    return mailbox.consume(state, view, realised)


def _mix_stage(
    components: Components,
    state: State,
    view: View,
    realised: RealisedPlan,
    stage: int,
    sent: Sent,
) -> None:
    plan, links = realised.plan, realised.plan.links
    rows = _without_background(view, plan, stage)
    if np.count_nonzero(realised.lost):
        lost = (links.stage == stage) & realised.lost
        keep_mean = components.capabilities.doubly_stochastic
        rows = renormalise_lost(rows, links.dst[lost], links.src[lost], to_self=keep_mean)
    if not len(rows.receiver):
        return
    sources = _sources(state, view, realised, stage, rows)
    if sent.nodes(rows.kind):
        sources = _with_sent(sources, rows, sent)
    exchange, trainer = components.exchange, components.trainer
    mixed = combined_rows(exchange, trainer, state.models, rows, sources)
    if mixed is None:
        return  # they wait for others
    mix_own_rows(components, state.models, rows, sources, mixed)
    passive = ~mask_of(view.fleet.nodes, plan.active)[rows.receiver]
    write_rows(state.models, rows.receiver, mixed, passive, sources.busy)


def _without_background(view: View, plan: Plan, stage: int) -> Mix:
    """Return the rows that are mixed now; a row fed by a background link waits for its arrival."""
    rows, links = plan.mixes[stage], plan.links
    if not np.count_nonzero(links.background):
        return rows
    late = links.background & (links.stage == stage)
    late_keys = _keys(view, links.dst, links.src)[late]
    waits = np.isin(_keys(view, rows.dst, rows.source), late_keys)
    return rows.take(np.bincount(rows.row_of, weights=waits, minlength=len(rows.receiver)) == 0)


def _sources(state: State, view: View, realised: RealisedPlan, stage: int, rows: Mix) -> Sources:
    """Return, for every weight, which model of the source the receiver gets."""
    if state.models.finished is None and not len(view.mailbox):
        return all_fresh(len(rows.source), len(rows.receiver))
    plan, none = realised.plan, np.zeros(len(rows.source), bool)
    busy, stale = np.zeros(len(rows.receiver), bool), none
    snapshot = np.full(len(none), -1)
    if rows is not plan.mixes[stage]:
        plan = replace(plan, mixes=(*plan.mixes[:stage], rows))
    linked, mailed = source_kind(plan, view, stage)
    if state.models.finished is not None:
        active = mask_of(view.fleet.nodes, plan.active)
        busy = ~active[rows.receiver] & ~state.done[rows.receiver]
        stale = (rows.dst == rows.source) & busy[rows.row_of]
        stale |= linked & _reads_stale(view, realised, stage, rows)
    if np.count_nonzero(mailed):
        snapshot = state.progress.in_flight.snapshots_of(rows, mailed)
    return Sources(~stale & ~mailed, stale, mailed, snapshot, busy)


def _with_sent(sources: Sources, rows: Mix, sent: Sent) -> Sources:
    """Return sources that take what some nodes send in place of their models."""
    sources = replace(sources, sent=sent)
    plain = ~sources.replaced(rows)
    return replace(sources, fresh=sources.fresh & plain, stale=sources.stale & plain)


def _reads_stale(view: View, realised: RealisedPlan, stage: int, rows: Mix) -> Bools:
    """Return whether the link behind each weight finds the training of its source unfinished."""
    links = realised.plan.links
    late = realised.stale & (links.stage == stage)
    late_keys = _keys(view, links.dst[late], links.src[late])
    stale: Bools = np.isin(_keys(view, rows.dst, rows.source), late_keys)
    return stale


def _distances(state: State, realised: RealisedPlan) -> Floats:
    """Return how far the model on each link is from its receiver's model, [L].

    A receiver that is not active and still trains has its last finished model (ADR 0006). NaN for
    an update: its receiver does not know the model behind it.
    """
    links = realised.plan.links
    busy = ~(state.done[links.dst] | np.isin(links.dst, realised.plan.active))
    distance = link_distances(state.models, links.dst, links.src, (busy, realised.stale))
    return np.where(links.delta, np.nan, distance)


def _keys(view: View, dst: Ints, src: Ints) -> Ints:
    """Return one number for each pair of nodes."""
    return dst * view.fleet.nodes + src


def _train(components: Components, state: State, view: View, realised: RealisedPlan) -> Trained:
    """Train the rows of the active workers in place, from their mixed models."""
    models, active = state.models, realised.plan.active
    if not len(active):  # all have failed
        return Trained(models.latest[:0], models.counters[:0], np.zeros(0), 0)
    if models.start is not None:
        at = index(active, models.latest)
        if models.finished_start is not None:
            models.finished_start[at] = models.start[at]
        models.start[at] = models.latest[at]
    if models.aggregated is not None:
        at = index(active, models.latest)
        if models.aggregated_before is not None:
            models.aggregated_before[at] = models.aggregated[at]
        models.aggregated[at] = models.latest[at]
    versions, steps, rate = view.version[active] + 1, realised.steps, realised.plan.rate
    return models.trainings.train(models, components.trainer, active, versions, steps, rate)


def start_trainings(progress: Progress, view: View, realised: RealisedPlan) -> Progress:
    """Return what is under way after the active workers have begun their new trainings."""
    active = realised.plan.active
    started, training = progress.started_s.copy(), progress.training_s.copy()
    started[active] = view.now_s + realised.begin_s
    training[active] = view.step_s[active] * realised.steps
    return Progress(started, training, progress.in_flight)
