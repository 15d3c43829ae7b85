"""Recipes: one for every figure of the paper's evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dystop.errors import ConfigError, nearest
from dystop_paper.reproduce.campaigns import CAMPAIGNS, Campaign
from dystop_paper.reproduce.paper_claims import CLAIMS, Claim, Measure

Draw = Literal["bars", "accuracy-time", "loss-time", "accuracy-bytes", "choices"]


@dataclass(frozen=True)
class Recipe:
    """One figure of the paper: the runs it uses, its charts, and its claims."""

    name: str
    title: str
    labels: tuple[str, ...]  # of the paper's figures
    campaign: Campaign
    draws: tuple[Draw, ...]
    measures: tuple[Measure, ...]  # claims about these measures belong to it

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of the paper that this figure can decide."""
        return tuple(c for c in CLAIMS[self.campaign.name] if c.measure in self.measures)


_ALL: tuple[Measure, ...] = ("time", "bytes", "accuracy", "staleness")
_CURVES: tuple[Draw, ...] = ("accuracy-time", "accuracy-bytes")


def _sim(data: str, suffix: str, name: str) -> Iterator[Recipe]:
    """Yield the recipes of the figures that the paper draws for each simulated data set."""

    def recipe(
        key: str,
        title: str,
        labels: tuple[str, ...],
        campaign: str,
        draws: tuple[Draw, ...],
        measures: tuple[Measure, ...],
    ) -> Recipe:
        runs = CAMPAIGNS[f"{campaign}-{data}"]
        return Recipe(f"{key}{suffix}", f"{title}, {name}", labels, runs, draws, measures)

    levels = ("1.0", "0.7", "0.4")
    many = {kind: tuple(f"fig:{kind}_{phi}" for phi in levels)
            for kind in ("acc_time", "loss_time", "comm_acc")}  # fmt: skip
    yield recipe("fig-phases", "Phase ablation", ("fig:observation",), "phases", _CURVES, _ALL)
    yield recipe("fig-completion-time", "Completion time against skew", ("fig:comp_time",), "main",
                 ("bars",), ("time",))  # fmt: skip
    yield recipe("fig-accuracy-time", "Accuracy against time", many["acc_time"], "main",
                 ("accuracy-time",), ("accuracy",))  # fmt: skip
    yield recipe("fig-loss-time", "Training loss against time", many["loss_time"], "main",
                 ("loss-time",), ())  # fmt: skip
    yield recipe("fig-overhead-accuracy", "Traffic against accuracy", many["comm_acc"], "main",
                 ("accuracy-bytes",), ("bytes",))  # fmt: skip
    yield recipe("fig-staleness", "Average staleness against the bound", ("fig:avg_stale",),
                 "staleness", ("bars",), ("staleness",))  # fmt: skip
    yield recipe("fig-accuracy-bound", "Accuracy for six staleness bounds", ("fig:acc_time_stale",),
                 "staleness", ("accuracy-time",), ("accuracy",))  # fmt: skip
    yield recipe("fig-accuracy-V", "Accuracy for four values of V", ("fig:acc_time_V",), "control",
                 ("accuracy-time",), ("accuracy", "time"))  # fmt: skip
    yield recipe("fig-accuracy-neighbours", "Accuracy for three numbers of neighbours",
                 ("fig:acc_time_nei",), "neighbours",
                 ("accuracy-time",), ("accuracy",))  # fmt: skip
    yield recipe("fig-overhead-neighbours", "Traffic for three numbers of neighbours",
                 ("fig:comm_acc_nei",), "neighbours", ("accuracy-bytes",), ("bytes",))  # fmt: skip


def _testbed(data: str, name: str) -> Iterator[Recipe]:
    """Yield the recipes of the paper's testbed figures, simulated with 15 workers."""
    runs = CAMPAIGNS[f"testbed-{data}"]
    curves = tuple(f"fig:{k}_{phi}_testbed" for k in ("acc_time", "loss_time")
                   for phi in ("1.0", "0.5"))  # fmt: skip
    yield Recipe(f"fig-testbed-completion-time-{data}", f"Testbed: completion time, {name}",
                 ("fig:comp_time_testbed",), runs, ("bars",), ("time",))  # fmt: skip
    yield Recipe(f"fig-testbed-overhead-{data}", f"Testbed: traffic, {name}",
                 ("fig:comm_acc_testbed",), runs, ("accuracy-bytes",), ("bytes",))  # fmt: skip
    yield Recipe(f"fig-testbed-curves-{data}", f"Testbed: accuracy and loss, {name}", curves, runs,
                 ("accuracy-time", "loss-time"), ("accuracy",))  # fmt: skip


def _recipes() -> dict[str, Recipe]:
    every = [
        *_sim("fmnist", "", "Fashion-MNIST"),
        *_sim("cifar10", "-cifar10", "CIFAR-10"),
        *_testbed("svhn", "SVHN"),
        *_testbed("cifar100", "CIFAR-100"),
        Recipe("sensitivity", "Does the ranking survive other readings?", (),
               CAMPAIGNS["sensitivity"], ("choices",), _ALL),
    ]  # fmt: skip
    return {recipe.name: recipe for recipe in every}


RECIPES = _recipes()


def recipe_of(name: str) -> Recipe:
    """Return the recipe with this name; an unknown name raises an error with the nearest name."""
    if name in RECIPES:
        return RECIPES[name]
    close = nearest(name, RECIPES) or f"; choose from {', '.join(RECIPES)}"
    raise ConfigError(f"command line: no recipe {name!r}{close}")
