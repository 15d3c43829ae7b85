"""Compressed links in the simulator: what they carry, and what is charged for it.

`realise` charges the links of a plan before the world times them. `compressed` replaces what nodes
hand out by what their receivers decode. Without compression both change nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dystop.control.compression import Compression, charged, no_versions, passed_on
from dystop.plan import Plan
from dystop.simulator.mixing.stage import Sent
from dystop.simulator.model_stack import Models, handed_out, index
from dystop.simulator.state import Components, State
from dystop.sparse import Bools, Ints
from dystop.types import Capabilities, View
from dystop.world import RealisedPlan


def with_copies(models: Models, compression: Compression | None, able: Capabilities) -> Models:
    """Return the models with the copies and leftovers that a compressor of differences needs."""
    if compression is None or not compression.sends_differences:
        return models
    leftover = torch.zeros_like(models.latest) if able.deltas else None
    return replace(models, public=models.latest.clone(), leftover=leftover)


def realise(
    components: Components, state: State, view: View, plan: Plan
) -> tuple[RealisedPlan, State]:
    """Return what becomes of a plan, and the state that knows which differences have arrived."""
    steps, timing = components.steps_of(plan), components.engine.timing
    compression, rings = components.compression, rings_of(plan)
    if compression is None or not (compression.sends_differences or rings):
        return components.world.realise(timing, view, plan, steps, state.progress), state
    if not compression.sends_differences:
        plan = replace(plan, links=passed_on(plan.links, rings))
        return components.world.realise(timing, view, plan, steps, state.progress), state
    versions = state.versions or no_versions(view.fleet.nodes)
    whole = compression.model_bytes / compression.message_bytes
    charge = charged(plan.links, versions, whole, rings)
    plan = replace(plan, links=charge.links)
    realised = components.world.realise(timing, view, plan, steps, state.progress)
    return realised, replace(state, versions=charge.settled(versions, realised.lost))


def rings_of(plan: Plan) -> frozenset[int]:
    """Return the stages in which models travel around a ring."""
    return frozenset(stage for stage, mix in enumerate(plan.mixes) if mix.collective)


def compressed(
    components: Components,
    models: Models,
    view: View,
    realised: RealisedPlan,
    stage: int,
    sent: Sent,
) -> Sent:
    """Return what the senders of a stage hand out after compression.

    A node compresses one model for all who ask in a stage. It is the last finished model if one of
    them asks before the training has ended.

    Args:
        components: What the simulation is made of.
        models: All models. Public copies and leftovers change.
        view: What was known when the round opened.
        realised: What becomes of the plan.
        stage: Number of the mix stage.
        sent: What attackers send in place of their models.
    """
    compression = components.compression
    if compression is None or not components.engine.train:
        return sent
    links, address = realised.plan.links, (view.t, stage)
    here = links.stage == stage
    nodes, busy = _senders(links.src, realised.stale, here & ~links.delta)
    whole = _publish(compression, models, nodes, _handed(models, nodes, busy, sent.models), address)
    nodes, busy = _senders(links.src, realised.stale, here & links.delta)
    update = _handed(models, nodes, busy, sent.models) - _origins(models, nodes, busy)
    return Sent(whole, _send_updates(compression, models, nodes, update, address))


def _senders(src: Ints, stale: Bools, which: Bools) -> tuple[Ints, Bools]:
    """Return the senders of some links, and for which of them a link finds them training."""
    nodes, of = np.unique(src[which], return_inverse=True)
    return nodes, np.bincount(of, weights=stale[which], minlength=len(nodes)) > 0


def _handed(models: Models, nodes: Ints, busy: Bools, sent: Mapping[int, Tensor]) -> Tensor:
    """Return the models that nodes hand out before compression, [K, W]."""
    rows = handed_out(models, nodes, busy).clone()
    for k, node in enumerate(nodes.tolist()):
        if node in sent:
            rows[k] = sent[node]
    return rows


def _origins(models: Models, nodes: Ints, busy: Bools) -> Tensor:
    """Return where the trainings behind the models of some nodes began, [K, W]."""
    if models.start is None:
        return models.latest[:0]  # no link carries an update
    origins = models.start[index(nodes, models.latest)]
    if models.finished_start is not None and busy.any():
        late = torch.from_numpy(busy).to(origins.device)
        finished = models.finished_start[index(nodes, models.latest)]
        origins = torch.where(late[:, None], finished, origins)
    return origins


def _publish(
    compression: Compression, models: Models, nodes: Ints, rows: Tensor, address: tuple[int, int]
) -> dict[int, Tensor]:
    """Return what receivers have of these models, by node; advance the public copies."""
    if models.public is None:
        received = _applied(compression, nodes, rows, address)
    else:
        at = index(nodes, rows)
        received = models.public[at] + _applied(
            compression, nodes, rows - models.public[at], address
        )
        models.public[at] = received
    return dict(zip(nodes.tolist(), received, strict=True))


def _send_updates(
    compression: Compression, models: Models, nodes: Ints, rows: Tensor, address: tuple[int, int]
) -> dict[int, Tensor]:
    """Return what receivers get of these updates, by node; keep what is left out."""
    if models.leftover is None:
        received = _applied(compression, nodes, rows, address)
    else:
        at = index(nodes, rows)
        whole = rows + models.leftover[at]
        received = _applied(compression, nodes, whole, address)
        models.leftover[at] = whole - received
    return dict(zip(nodes.tolist(), received, strict=True))


def _applied(
    compression: Compression, nodes: Ints, rows: Tensor, address: tuple[int, int]
) -> Tensor:
    """Compress rows one by one on the host, [K, W]."""
    out = np.empty(rows.shape, np.float32)
    for k, (node, row) in enumerate(zip(nodes.tolist(), rows.cpu().numpy(), strict=True)):
        out[k] = compression.applied(row, node, *address)
    return torch.from_numpy(out).to(rows)
