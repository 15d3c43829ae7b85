"""What goes wrong and when: drawn from a seed, so that a bad run can be had again."""

from dataclasses import dataclass
from typing import Literal

from dystop.rng import stream

Kind = Literal["kill", "cut", "freeze", "kill_coordinator"]


@dataclass(frozen=True)
class Fault:
    """One fault; `dice` in [0, 1) chooses among the workers that can be hit at that moment."""

    at_s: float
    kind: Kind
    dice: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Rhythm:
    """How often each kind happens, and how long it lasts. 0 switches a kind off."""

    kill_every_s: float = 10.0
    cut_every_s: float = 15.0
    cut_s: float = 5.0
    freeze_every_s: float = 30.0
    freeze_s: float = 8.0
    coordinator_kills: int = 5


def schedule(rhythm: Rhythm, from_s: float, until_s: float, seed: int) -> list[Fault]:
    """All faults between two moments, in order; each a little off the beat.

    >>> [f.kind for f in schedule(Rhythm(20, 0, 5, 0, 8, 1), 0.0, 40.0, seed=0)]
    ['kill', 'kill', 'kill_coordinator']
    """
    span_s = until_s - from_s
    found: list[Fault] = []
    every: list[tuple[Kind, float, float]] = [
        ("kill", rhythm.kill_every_s, 0.0),
        ("cut", rhythm.cut_every_s, rhythm.cut_s),
        ("freeze", rhythm.freeze_every_s, rhythm.freeze_s),
    ]
    if rhythm.coordinator_kills:
        every.append(("kill_coordinator", span_s / rhythm.coordinator_kills, 0.0))
    for kind, period_s, lasts_s in every:
        dice = stream(seed, "chaos", kind)
        count = int(span_s / period_s + 1e-9) if period_s else 0
        for k in range(count):
            at_s = from_s + (k + dice.uniform(0.1, 0.9)) * period_s
            found.append(Fault(float(at_s), kind, float(dice.random()), lasts_s))
    return sorted(found, key=lambda fault: fault.at_s)
