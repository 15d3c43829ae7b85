"""Staleness weighting, for any asynchronous mechanism (section "Deal with Staleness").

The module applies one of the methods that the paper reviews to the plan of a mechanism: smaller
weights for older models (FedAsync), no models above an age limit (SAFA), learning rates by
participation (ASO-Fed), or first-order delay compensation (a Taylor term on each update). The
default is none, as in the paper.

A rule changes the weights of updates like those of models; the own model then keeps its weight.
`StalenessWeighted` wraps a mechanism, and refuses a rule that has nothing to change.

The age of a source is the number of rounds since the training of its model began: tau_j for a pull,
the rounds since sending for a message.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from dystop.control.aggregation import rest_to_self, row_sums
from dystop.control.plan_check import source_kind
from dystop.errors import ConfigError
from dystop.mechanisms.wrapper import Wrapper
from dystop.params import param
from dystop.plan import Mix, Plan
from dystop.sparse import Bools, Floats, Ints
from dystop.types import Capabilities, View

Rule = Literal["none", "constant", "polynomial", "hinge", "discard", "learning-rate", "compensate"]


@dataclass(frozen=True)
class StalenessWeighting:
    """The rule by which stale models are weighted, and its parameters."""

    rule: Rule = param(
        "none",
        "constant, polynomial, hinge: FedAsync's weights; discard: SAFA; "
        "learning-rate: ASO-Fed; compensate: first-order delay compensation",
    )
    share: Annotated[float, Gt(0), Le(1)] = param(
        1.0,
        "factor on the weight of every neighbour under FedAsync's three rules (its alpha)",
        under={"rule": ("constant", "polynomial", "hinge")},
    )
    exponent: Annotated[float, Ge(0)] = param(
        0.5, "polynomial: weight (age + 1)^-exponent", under={"rule": ("polynomial",)}
    )
    slope: Annotated[float, Ge(0)] = param(
        10.0, "hinge: weight 1 / (slope (age - limit) + 1)", under={"rule": ("hinge",)}
    )
    limit: Annotated[int, Ge(0)] = param(
        4,
        "hinge, discard: age up to which a model is fresh",
        under={"rule": ("hinge", "discard")},
    )
    strength: Annotated[float, Ge(0)] = param(
        1.0,
        "compensate: factor of the second-order term; 0 leaves models as they are",
        under={"rule": ("compensate",)},
    )


def without_effect(weighting: StalenessWeighting, able: Capabilities) -> str:
    """Return why a rule would leave all plans of a mechanism as they are; empty where it works.

    >>> without_effect(StalenessWeighting("discard"), Capabilities(mode="async"))
    ''
    """
    if weighting.rule == "none":
        return ""
    if able.mode == "sync":
        return "it is synchronous, so its models are never stale"
    if able.collective:
        return "all its workers are active in every round and average in a ring, as a whole"
    if weighting.rule == "compensate" and weighting.strength == 0:
        return "staleness.strength = 0 leaves models as they are; set it above 0"
    decay = {"constant": 0.0, "polynomial": weighting.exponent, "hinge": weighting.slope}
    if weighting.share == 1 and decay.get(weighting.rule) == 0:
        return "staleness.share = 1 without a decay multiplies every weight by one; set it below 1"
    return ""


@dataclass(frozen=True)
class StalenessWeighted(Wrapper):
    """A mechanism whose plans weight stale models by a rule.

    Raises:
        ConfigError: The rule would leave all plans as they are.
    """

    weighting: StalenessWeighting

    def __post_init__(self) -> None:
        """Refuse a rule without effect."""
        if reason := without_effect(self.weighting, self.inner.capabilities()):
            raise ConfigError(
                f"staleness.rule = {self.weighting.rule!r} changes nothing under {self.name}: "
                f"{reason}; use 'none', or another asynchronous mechanism ('dystop list "
                "mechanisms')"
            )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism inside needs, and whether updates are compensated."""
        able, compensates = self.inner.capabilities(), self.weighting.rule == "compensate"
        return replace(able, compensates=True) if compensates else able

    def changed(self, plan: Plan, view: View) -> Plan:
        """Return the plan with stale models weighted."""
        return apply(self.weighting, plan, view)


def freshness(staleness_weighting: StalenessWeighting, age: Ints) -> Floats:
    """Return the factor on the weight of a model by its age (FedAsync's alpha times s).

    >>> freshness(StalenessWeighting("polynomial", share=0.6, exponent=0.5), np.array([3])).tolist()
    [0.3]
    >>> freshness(StalenessWeighting("hinge", share=0.6), np.array([4, 6])).round(6).tolist()
    [0.6, 0.028571]
    """
    if staleness_weighting.rule == "polynomial":
        factor = (age + 1.0) ** -staleness_weighting.exponent
    elif staleness_weighting.rule == "hinge":
        factor = 1.0 / (
            staleness_weighting.slope * np.maximum(age - staleness_weighting.limit, 0) + 1.0
        )
    else:
        factor = np.ones(len(age))
    weight: Floats = np.asarray(staleness_weighting.share * factor, float)
    return weight


def participation_rate(t: int, version: Ints) -> Floats:
    """Return the factor on each worker's learning rate by its participation (ASO-Fed).

    It is max(1, ln d), where d is the mean number of rounds between activations so far.
    """
    return np.maximum(1.0, np.log(t / (version + 1.0)))


def apply(staleness_weighting: StalenessWeighting, plan: Plan, view: View) -> Plan:
    """Return the plan with stale models weighted; the plan itself where the rule is "none"."""
    if staleness_weighting.rule == "none":
        return plan
    if staleness_weighting.rule == "learning-rate":
        return replace(plan, rate=participation_rate(view.t, view.version[plan.active]))
    stages = tuple(
        _weight_stage(staleness_weighting, plan, view, k) for k in range(len(plan.mixes))
    )
    return replace(plan, mixes=stages)


def _weight_stage(
    staleness_weighting: StalenessWeighting, plan: Plan, view: View, stage: int
) -> Mix:
    rows = plan.mixes[stage]
    if rows.collective:
        return rows  # a ring averages as a whole
    if staleness_weighting.rule == "compensate":
        return replace(rows, compensation=staleness_weighting.strength)
    age, foreign = _ages(plan, view, stage)
    if staleness_weighting.rule == "discard":
        factor = (~foreign | (age <= staleness_weighting.limit)).astype(float)
        share_out = _divided
    else:
        factor = np.where(foreign, freshness(staleness_weighting, age), 1.0)
        share_out = rest_to_self
    weight = rows.weight * factor
    if rows.kind == "delta":  # a smaller part of an update is added; the own model keeps its weight
        return replace(rows, weight=weight)
    return share_out(rows, weight)


def _ages(plan: Plan, view: View, stage: int) -> tuple[Ints, Bools]:
    """Return the age of the source of each weight, and whether it is another worker's model."""
    rows, n = plan.mixes[stage], view.fleet.workers
    linked, mailed = source_kind(plan, view, stage)
    tau = np.append(view.staleness, 0)[np.minimum(rows.source, n)]  # a server has no staleness
    age = np.where(linked, tau, 0)
    if mailed.any():
        nodes, box = view.fleet.nodes, view.mailbox
        keys = box.dst * nodes + box.src
        at = np.searchsorted(keys, (rows.dst * nodes + rows.source)[mailed])
        age[mailed] = view.t - box.sent[at]
    return age, linked | mailed


def _divided(rows: Mix, weight: Floats) -> Mix:
    """Return rows divided by their remaining weight; a row with none keeps its own model."""
    left = row_sums(rows, weight)
    if (left > 0).all():
        return replace(rows, weight=weight / left[rows.row_of])
    return rest_to_self(rows, weight)
