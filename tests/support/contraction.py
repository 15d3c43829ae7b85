"""How much one round of mixing shrinks disagreement, measured with scalars in place of models.

Training is the identity, everyone reaches everyone, and what a mechanism's rows do to numbers of
zero mean is compared with its closed form: E||y||^2 / ||x||^2.
"""

import functools
from dataclasses import replace

import numpy as np
import torch

from dystop.control.plan_check import check_plan
from dystop.rng import stream
from dystop.simulator.mixing import shared_mask
from dystop.sparse import ints
from support.strategies import freeze, random_view


@functools.cache
def _base(n, seed):
    """Everyone present, in reach and free to talk, with equal amounts of data."""
    view = random_view(seed, n, shape="complete", all_alive=True, budget=np.inf)
    fleet = replace(view.fleet, data_size=ints(np.full(n, 8)))
    none = np.zeros(0, np.int64)
    mailbox = replace(view.mailbox, dst=none, src=none, version=none)
    return replace(view, fleet=fleet, last=None, mailbox=mailbox)


def complete_views(n, seed=0):
    """View maker: round number to a view on the complete graph; who finishes first is random."""

    def view_at(t):
        remaining_s = stream(seed, "remaining", t).random(n)
        return freeze(replace(_base(n, seed), t=t, remaining_s=remaining_s))

    return view_at


def mixed_by(plan, models):
    """Models [nodes, W] after all mix stages; rows of one stage read what was there before it."""
    for stage in plan.mixes:
        assert stage.kind in ("linear", "masked"), "without training there are no updates to mix"
        rows = np.zeros((len(stage.receiver), models.shape[1]))
        np.add.at(rows, stage.row_of, stage.weight[:, None] * models[stage.source])
        if stage.kind == "masked":
            mask = shared_mask(*stage.mask, torch.empty(1, models.shape[1])).numpy()
            rows = np.where(mask, rows, models[stage.receiver])
        models = models.copy()
        models[stage.receiver] = rows
    return models


def contraction(mechanism, view_at, *, rounds=1000, start=None, width=16, centred=False):
    """Mean of ||y||^2 / ||x||^2 over rounds; memory goes on, the numbers begin anew.

    Args:
        mechanism: whose rows are measured.
        view_at: from a round number, from 1, to a View; see `complete_views`.
        rounds: how many plans to average over.
        start: the vector x [N], for a worst case; unset: a fresh random one of mean zero for each
            round and column, which suits closed forms that hold for every such vector.
        width: numbers per worker, mixed alike; a masked mix changes a share of them only.
        centred: measure y about its own mean (for rows that do not keep the mean).
    """
    memory = mechanism.init(view_at(1).fleet)
    ratios = np.empty(rounds)
    for t in range(1, rounds + 1):
        view = view_at(t)
        plan, memory = mechanism.plan(memory, view)
        if t <= 10:
            check_plan(mechanism, plan, view)
        x = _numbers(view, start, width)
        y = mixed_by(plan, x)
        if centred:
            y = y - y.mean(axis=0)
        ratios[t - 1] = (y**2).sum() / (x**2).sum()
    return float(ratios.mean())


def _numbers(view, start, width):
    """[N, width], every column of mean zero."""
    n = view.fleet.workers
    if start is None:
        x = stream(view.fleet.seed, "numbers", view.t).normal(size=(n, width))
    else:
        x = np.repeat(np.asarray(start, float)[:, None], width, axis=1)
    return x - x.mean(axis=0)
