"""The parts of `dystop.exchange` on the stack of all models.

`realise` charges the links of a plan before the world times them. `sent` replaces what nodes hand
out: attackers send other vectors, and receivers decode what links carry.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dystop.exchange import Exchange
from dystop.exchange.attacks import Attackers, Knowledge
from dystop.exchange.codecs import Codec, charged, no_versions, passed_on
from dystop.plan import Plan
from dystop.simulator.mixing.stage import NOTHING, Sent
from dystop.simulator.model_stack import Models, handed_out, index, published
from dystop.simulator.state import Components, State
from dystop.sparse import Bools, Ints
from dystop.types import Capabilities, View
from dystop.world import RealisedPlan


def with_memory(models: Models, exchange: Exchange, able: Capabilities) -> Models:
    """Return the models with what the parts of the exchange remember."""
    models = replace(models, memory=exchange.rule.memory(len(models.latest)))
    if exchange.codec is None or not exchange.codec.sends_differences:
        return models
    leftover = torch.zeros_like(models.latest) if able.deltas else None
    return replace(models, public=models.latest.clone(), leftover=leftover)


def realise(
    components: Components, state: State, view: View, plan: Plan
) -> tuple[RealisedPlan, State]:
    """Return what becomes of a plan, and the state that knows which differences have arrived."""
    codec, world, steps = components.exchange.codec, components.world, components.steps_of(plan)
    law, progress = components.engine.law, state.progress
    if codec is None:
        return world.realise(law, view, plan, steps, progress), state
    rings = rings_of(plan)
    if not codec.sends_differences:
        plan = replace(plan, links=passed_on(plan.links, rings))
        return world.realise(law, view, plan, steps, progress), state
    versions = state.versions or no_versions(view.fleet.nodes)
    charge = charged(plan.links, versions, codec.model_bytes / codec.message_bytes, rings)
    plan = replace(plan, links=charge.links)
    realised = world.realise(law, view, plan, steps, progress)
    return realised, state._replace(versions=charge.settled(versions, realised.lost))


def rings_of(plan: Plan) -> frozenset[int]:
    """Return the stages in which models travel around a ring."""
    return frozenset(stage for stage, mix in enumerate(plan.mixes) if mix.collective)


def sent(
    components: Components, state: State, view: View, realised: RealisedPlan, stage: int
) -> Sent:
    """Return what nodes hand out in a stage in place of their models."""
    if not components.engine.train:
        return NOTHING
    exchange, changed = components.exchange, NOTHING
    if exchange.attackers is not None:
        changed = _attacked(exchange.attackers, components, state, view)
    if exchange.codec is not None:
        changed = _coded(exchange.codec, state.models, view, realised, stage, changed)
    return changed


def _attacked(attackers: Attackers, components: Components, state: State, view: View) -> Sent:
    """Return what attackers send; they know the models of all honest workers."""
    if attackers.attack.flips_labels:
        return NOTHING
    stack = published(state.models, state.done)
    first, _ = components.trainer.initial()
    honest = torch.from_numpy(attackers.honest(view.fleet.workers)).to(stack.device)
    others, vectors = stack[honest], {}
    for node in attackers.nodes.tolist():
        own = stack[node]

        def noise(node: int = node, own: Tensor = own) -> Tensor:
            return torch.from_numpy(attackers.noise(node, view.t, len(own))).to(own)

        known = Knowledge(own, first.to(own), others, noise)
        vectors[node] = attackers.attack.sent(known)
    return Sent(vectors)


def _coded(
    codec: Codec,
    models: Models,
    view: View,
    realised: RealisedPlan,
    stage: int,
    sent: Sent,
) -> Sent:
    """Return what receivers decode of what the senders of a stage hand out.

    A node encodes one model for all who ask in a stage. It is the last finished model if one of
    them asks before the training has ended.

    Args:
        codec: Of the links.
        models: All models. Public copies and leftovers change.
        view: What was known when the round opened.
        realised: What becomes of the plan.
        stage: Number of the mix stage.
        sent: What attackers send in place of their models.
    """
    links, address = realised.plan.links, (view.t, stage)
    here = links.stage == stage
    nodes, busy = _senders(links.src, realised.stale, here & ~links.delta)
    whole = _publish(codec, models, nodes, _handed(models, nodes, busy, sent.models), address)
    nodes, busy = _senders(links.src, realised.stale, here & links.delta)
    update = _handed(models, nodes, busy, sent.models) - _origins(models, nodes, busy)
    return Sent(whole, _send_updates(codec, models, nodes, update, address))


def _senders(src: Ints, stale: Bools, which: Bools) -> tuple[Ints, Bools]:
    """Return the senders of some links, and for which of them a link finds them training."""
    nodes, of = np.unique(src[which], return_inverse=True)
    return nodes, np.bincount(of, weights=stale[which], minlength=len(nodes)) > 0


def _handed(models: Models, nodes: Ints, busy: Bools, sent: Mapping[int, Tensor]) -> Tensor:
    """Return the models that nodes hand out before they are encoded, [K, W]."""
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
    codec: Codec, models: Models, nodes: Ints, rows: Tensor, address: tuple[int, int]
) -> dict[int, Tensor]:
    """Return what receivers have of these models, by node; advance the public copies."""
    if models.public is None:
        received = _applied(codec, nodes, rows, address)
    else:
        at = index(nodes, rows)
        received = models.public[at] + _applied(codec, nodes, rows - models.public[at], address)
        models.public[at] = received
    return dict(zip(nodes.tolist(), received, strict=True))


def _send_updates(
    codec: Codec, models: Models, nodes: Ints, rows: Tensor, address: tuple[int, int]
) -> dict[int, Tensor]:
    """Return what receivers get of these updates, by node; keep what is left out."""
    if models.leftover is None:
        received = _applied(codec, nodes, rows, address)
    else:
        at = index(nodes, rows)
        whole = rows + models.leftover[at]
        received = _applied(codec, nodes, whole, address)
        models.leftover[at] = whole - received
    return dict(zip(nodes.tolist(), received, strict=True))


def _applied(codec: Codec, nodes: Ints, rows: Tensor, address: tuple[int, int]) -> Tensor:
    """Encode and decode rows one by one on the host, [K, W]."""
    out = np.empty(rows.shape, np.float32)
    for k, (node, row) in enumerate(zip(nodes.tolist(), rows.cpu().numpy(), strict=True)):
        out[k] = codec.applied(row, node, *address)
    return torch.from_numpy(out).to(rows)
