"""The faults of a run and their times, drawn from a seed so that a failure can be repeated."""

from dataclasses import dataclass
from typing import Literal

from dystop.rng import stream

Kind = Literal["kill", "cut", "freeze", "kill_coordinator"]


@dataclass(frozen=True)
class Fault:
    """One fault; `draw` in [0, 1) selects one of the workers that run at that moment."""

    at_s: float
    kind: Kind
    draw: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultRates:
    """The period and the duration of each kind of fault. A period of 0 switches a kind off."""

    kill_every_s: float = 10.0
    cut_every_s: float = 15.0
    cut_s: float = 5.0
    freeze_every_s: float = 30.0
    freeze_s: float = 8.0
    coordinator_kills: int = 5


def schedule(rates: FaultRates, from_s: float, until_s: float, seed: int) -> list[Fault]:
    """Return all faults between two times, in order; each has a random offset in its period.

    >>> [f.kind for f in schedule(FaultRates(20, 0, 5, 0, 8, 1), 0.0, 40.0, seed=0)]
    ['kill', 'kill', 'kill_coordinator']
    """
    span_s = until_s - from_s
    found: list[Fault] = []
    every: list[tuple[Kind, float, float]] = [
        ("kill", rates.kill_every_s, 0.0),
        ("cut", rates.cut_every_s, rates.cut_s),
        ("freeze", rates.freeze_every_s, rates.freeze_s),
    ]
    if rates.coordinator_kills:
        every.append(("kill_coordinator", span_s / rates.coordinator_kills, 0.0))
    for kind, period_s, lasts_s in every:
        rng = stream(seed, "chaos", kind)
        count = int(span_s / period_s + 1e-9) if period_s else 0
        for k in range(count):
            at_s = from_s + (k + rng.uniform(0.1, 0.9)) * period_s
            found.append(Fault(float(at_s), kind, float(rng.random()), lasts_s))
    return sorted(found, key=lambda fault: fault.at_s)
