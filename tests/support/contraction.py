"""The factor by which one round of mixing reduces the disagreement of workers.

Models are short vectors of mean zero, training changes nothing, and the reach graph is complete.
The measured factor E||y||^2 / ||x||^2 is compared with its closed form.
"""

import functools
from dataclasses import replace

import numpy as np
import torch

from dystop.control.plan_check import check_plan
from dystop.rng import stream
from dystop.simulator.mixing.stage import shared_mask
from dystop.sparse import ints
from support.strategies import freeze, random_view


@functools.cache
def _base(n, seed):
    """Return a view of a complete graph with all workers present, no budgets and equal data."""
    view = random_view(seed, n, shape="complete", all_alive=True, budget=np.inf)
    fleet = replace(view.fleet, data_size=ints(np.full(n, 8)))
    none = np.zeros(0, np.int64)
    mailbox = replace(view.mailbox, dst=none, src=none, version=none)
    return replace(view, fleet=fleet, last=None, mailbox=mailbox)


def complete_views(n, seed=0):
    """Return a function from a round to a view of the complete graph.

    The remaining training times are random.
    """

    def view_at(t):
        remaining_s = stream(seed, "remaining", t).random(n)
        return freeze(replace(_base(n, seed), t=t, remaining_s=remaining_s))

    return view_at


def mixed_by(plan, models):
    """Return the models [nodes, W] after all mix stages; a stage reads the models before it."""
    for stage in plan.mixes:
        assert stage.kind in ("linear", "masked"), "a delta mix needs training"
        rows = np.zeros((len(stage.receiver), models.shape[1]))
        np.add.at(rows, stage.row_of, stage.weight[:, None] * models[stage.source])
        if stage.kind == "masked":
            mask = shared_mask(*stage.mask, torch.empty(1, models.shape[1])).numpy()
            rows = np.where(mask, rows, models[stage.receiver])
        models = models.copy()
        models[stage.receiver] = rows
    return models


def contraction(mechanism, view_at, *, rounds=1000, start=None, width=16, centred=False):
    """Return the mean of ||y||^2 / ||x||^2 over rounds; each round mixes new vectors x.

    Args:
        mechanism: the mechanism whose rows are measured.
        view_at: a function from a round, from 1, to a View; see `complete_views`.
        rounds: number of plans.
        start: the vector x [N], for a worst case; None: a random one of mean zero for each round
            and column, for closed forms that hold for every such vector.
        width: numbers per worker; a masked mix changes a share of them.
        centred: subtract the mean of y, for rows that do not keep the mean.
    """
    memory = mechanism.init(view_at(1).fleet)
    ratios = np.empty(rounds)
    for t in range(1, rounds + 1):
        view = view_at(t)
        plan, memory = mechanism.plan(memory, view)
        if t <= 10:
            check_plan(mechanism, plan, view)
        x = _vectors(view, start, width)
        y = mixed_by(plan, x)
        if centred:
            y = y - y.mean(axis=0)
        ratios[t - 1] = (y**2).sum() / (x**2).sum()
    return float(ratios.mean())


def _vectors(view, start, width):
    """Return the vectors to mix, [N, width]; every column has mean zero."""
    n = view.fleet.workers
    if start is None:
        x = stream(view.fleet.seed, "numbers", view.t).normal(size=(n, width))
    else:
        x = np.repeat(np.asarray(start, float)[:, None], width, axis=1)
    return x - x.mean(axis=0)
