"""Parameters of the simulated edge network, with the paper's defaults (subsec:setup)."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from dystop.errors import ConfigError
from dystop.params import check_bounds, check_order, param, section

Probability = Annotated[float, Ge(0), Le(1)]
Decibel = Annotated[float, Ge(-300), Le(300)]
Metres = Annotated[float, Ge(1e-3), Le(1e9)]
Seconds = Annotated[float, Ge(1e-12), Le(1e9)]
Pause = Annotated[float, Ge(0), Le(1e9)]
Speed = Annotated[float, Ge(1e-6), Le(1e6)]


@dataclass(frozen=True)
class Channel:
    """The radio channel: Shannon rates over a path loss with Rayleigh fading.

    The bounds leave out what no radio has. Within them every rate is a finite number above zero.
    """

    bandwidth_hz: Annotated[float, Ge(1), Le(1e15)] = param(1e6, "bandwidth b of a link, in hertz")
    noise_w: Annotated[float, Ge(1e-30), Le(1)] = param(1e-13, "the paper's gamma, in watts")
    noise: Literal["power", "squared"] = param(
        "power",
        "by what p g is divided: power: by noise_w; squared: by noise_w^2, as the formula is "
        "printed (1e-26 for 1e-13), which makes every link faster and nearly equal",
    )
    reference_gain_db: Decibel = param(-43.0, "channel gain G_0 at 1 m, in decibels")
    path_loss_exponent: Annotated[float, Ge(0), Le(10)] = param(
        4.0, "exponent of the path loss over distance"
    )
    power_dbm: tuple[Decibel, Decibel] = param(
        (10.0, 20.0), "range from which each worker's transmit power is drawn, in dBm"
    )
    power_fluctuation: Annotated[float, Ge(0), Le(10)] = param(
        0.1, "standard deviation of the factor on each sender's power in a round"
    )
    fading: bool = param(
        True, "whether the gain is drawn from an exponential distribution (Rayleigh fading)"
    )
    coherence_blocks: Annotated[int, Ge(1), Le(1024)] = param(
        8,
        "independent fading draws over which a transfer averages; 1: as the paper reads literally",
    )
    server_power_dbm: Decibel = param(30.0, "transmit power of the base station, in dBm")
    min_distance_m: Metres = param(1.0, "smallest distance in the path loss, in metres")

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world.channel")
        check_order("world.channel.power_dbm", self.power_dbm)


@dataclass(frozen=True)
class Compute:
    """The speed of the workers."""

    batch_s: Seconds | Literal["measure"] = param(
        0.02, "seconds per mini-batch on the reference device (zeta); 'measure': time it first"
    )
    devices: Literal["drawn", "jetson"] = param(
        "drawn",
        "factor on batch_s: drawn: from a normal distribution; jetson: the paper's five boards",
    )
    spread: Annotated[float, Ge(0), Le(1e6)] = param(
        0.4, "standard deviation of the workers' factors on batch_s; 0: all are equal"
    )
    slowest: Annotated[float, Ge(1), Le(1e6)] = param(2.5, "largest factor that a worker can draw")
    fastest: Annotated[float, Ge(1e-6), Le(1)] = param(
        0.2, "smallest factor that a worker can draw"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world.compute")


@dataclass(frozen=True)
class Budget:
    """The models that a worker may send and receive in a round."""

    enabled: bool = param(True, "whether the bandwidth of workers is limited")
    models: Annotated[float, Ge(0), Le(1e12)] | None = param(
        None, "mean models per worker and round, before rounding down; unset: 2 ceil(log2 N)"
    )
    variation: Annotated[float, Ge(0), Le(1e6)] = param(
        0.25, "relative standard deviation of the budget over rounds"
    )
    binds: Literal["mechanism", "everybody", "nobody"] = param(
        "mechanism",
        "whom budgets bind: mechanism: those that heed them (DySTop, AsyDFL, AsyNG, L2PL); "
        "everybody: no link beyond a budget is made, whatever the mechanism; nobody",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds, or binds where there is no limit."""
        check_bounds(self, "world.budget")
        if self.binds == "everybody" and not self.enabled:
            raise ConfigError(
                "world.budget.binds = 'everybody', but world.budget.enabled = false: there is no "
                "budget to bind; leave one of them out"
            )


@dataclass(frozen=True)
class Mobility:
    """Random waypoint mobility: walk to a random point, pause, walk on."""

    enabled: bool = param(False, "whether workers move")
    speed_mps: tuple[Speed, Speed] = param(
        (0.5, 1.5), "range of walking speeds, in metres per second", under={"enabled": None}
    )
    pause_s: tuple[Pause, Pause] = param(
        (0.0, 10.0), "range of pauses between two walks, in seconds", under={"enabled": None}
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world.mobility")
        check_order("world.mobility.speed_mps", self.speed_mps)
        check_order("world.mobility.pause_s", self.pause_s)


@dataclass(frozen=True)
class Churn:
    """Workers that leave and come back."""

    enabled: bool = param(False, "whether workers leave and come back")
    mean_up_s: Annotated[float, Ge(1e-3), Le(1e12)] = param(
        120.0, "mean seconds that a worker stays"
    )
    mean_down_s: Annotated[float, Ge(1e-3), Le(1e12)] = param(
        30.0, "mean seconds that a worker is absent"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world.churn")


@dataclass(frozen=True)
class Outages:
    """Links that are down and transfers that fail."""

    drop: Probability = param(
        0.0, "probability that a link is down for a whole round, known when the round opens"
    )
    loss: Probability = param(
        0.0, "probability that a planned transfer fails, unknown when it is planned"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world.outages")


_PAPER_WORKERS = 100  # in the paper's yard of 100 m x 100 m


def yard_of(workers: int) -> tuple[float, float]:
    """Return the area in which workers stand as densely as the paper's; at most the paper's.

    >>> yard_of(25), yard_of(1000)
    ((50.0, 50.0), (100.0, 100.0))
    """
    side_m = 100.0 * min(1.0, math.sqrt(workers / _PAPER_WORKERS))
    return side_m, side_m


@dataclass(frozen=True)
class WorldParams:
    """All parameters of the simulated edge network."""

    area_m: tuple[Metres, Metres] = param(
        (100.0, 100.0),
        "width and height of the area, in metres; where neither it nor world.range_m is given, "
        "fewer than 100 workers share a square of 100 m x sqrt(N / 100), the paper's density",
    )
    range_m: Annotated[float, Ge(1e-3), Le(1e10)] = param(
        40.0, "largest distance at which two workers can communicate, in metres"
    )
    reach: Literal["strict", "overlay"] = param(
        "strict",
        "strict: links only between workers in range; overlay: relayed links between others",
    )
    channel: Channel = section(Channel, "the radio channel")
    compute: Compute = section(Compute, "how fast workers train")
    budget: Budget = section(Budget, "models a worker may send and receive in a round")
    mobility: Mobility = section(Mobility, "whether and how workers move")
    churn: Churn = section(Churn, "whether and how workers leave and come back")
    outages: Outages = section(Outages, "links that are down and transfers that fail")

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "world")
        for name, kind in _BLOCKS.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"world.{name}: expected a {kind.__name__} block")


_BLOCKS: dict[str, type] = {
    "channel": Channel,
    "compute": Compute,
    "budget": Budget,
    "mobility": Mobility,
    "churn": Churn,
    "outages": Outages,
}
