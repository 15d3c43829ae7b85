"""Properties of networks that a study varies, and the keys that give a network a value."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dystop.config import Experiment
from dystop.errors import ConfigError
from dystop.rng import stream
from dystop.studies.trials import pace_of

_PAIRS = 20_000  # drawn to turn a degree into a range


@dataclass(frozen=True)
class NamedAxis:
    """A property of networks that a study can vary."""

    meaning: str
    allowed: str
    accepts: Callable[[float], bool]
    words: Callable[[Experiment, float], list[str]]  # the keys that give a network this value


def _spread(_: Experiment, value: float) -> list[str]:
    return [f"world.compute.spread={value:g}"]


def _communication(base: Experiment, value: float) -> list[str]:
    """Choose the bandwidth: the time of a transfer is inversely proportional to it."""
    pace = pace_of(base)
    if not pace.link_s:
        raise ConfigError(
            "axis communication: no two workers are in reach when the first round opens, so there "
            "is no link to make slower; enlarge world.range_m"
        )
    bandwidth = base.world.channel.bandwidth_hz * pace.ratio / value
    return [f"world.channel.bandwidth_hz={bandwidth:.6g}"]


def _skew(_: Experiment, value: float) -> list[str]:
    return [f"data.phi={value:g}"]


def _density(base: Experiment, value: float) -> list[str]:
    """Choose the range within which a worker has so many others, on average."""
    width_m, height_m = base.world.area_m
    range_m = range_for(value, base.fleet.workers, base.world.area_m)
    return [f"world.area_m=[{width_m!r}, {height_m!r}]", f"world.range_m={range_m:.4g}"]


def range_for(degree: float, workers: int, area_m: tuple[float, float]) -> float:
    """Return the range in metres at which workers placed at random have this mean degree."""
    if not 0 < degree <= workers - 1:
        raise ConfigError(
            f"axis density: {degree:g} neighbours of {workers} workers; expected a number above 0 "
            f"and at most {workers - 1}"
        )
    pairs = stream(0, "density").random((_PAIRS, 2, 2)) * np.asarray(area_m)
    distance = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    return float(np.quantile(distance, degree / (workers - 1)))


def _churn(base: Experiment, value: float) -> list[str]:
    """Choose how long workers stay; how long they are away is a key of the configuration."""
    if value == 0:
        return ["world.churn.enabled=false"]
    up_s = base.world.churn.mean_down_s * (1 - value) / value
    return ["world.churn.enabled=true", f"world.churn.mean_up_s={up_s:.6g}"]


AXES = {
    "spread": NamedAxis(
        "compute spread: standard deviation of the workers' factors on the time of a mini-batch",
        "a number >= 0", lambda v: v >= 0, _spread,
    ),
    "communication": NamedAxis(
        "seconds of one transfer over the median link, for one second of local training",
        "a number > 0", lambda v: v > 0, _communication,
    ),
    "skew": NamedAxis(
        "phi: concentration of labels; small is more skewed, from 1 on there is no skew",
        "a number > 0", lambda v: v > 0, _skew,
    ),
    "density": NamedAxis(
        "workers in reach of a worker, on average", "a number > 0", lambda v: v > 0, _density,
    ),
    "churn": NamedAxis(
        "share of the time that a worker is absent", "a number >= 0 and < 1",
        lambda v: 0 <= v < 1, _churn,
    ),
}  # fmt: skip
"""The named properties. Any configuration key can be varied, too."""
