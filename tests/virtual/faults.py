"""The faults of a virtual cluster, drawn from a seed."""

from dataclasses import dataclass

import numpy as np

from dystop.rng import stream


@dataclass(frozen=True)
class Faults:
    """Rates and counts; the default is a network and machines without any fault."""

    delay_s: tuple[float, float] = (0.005, 0.02)  # of a control message
    drop: float = 0.0  # share of control messages that are lost
    duplicate: float = 0.0  # share of control messages that arrive again, up to 2 s later
    copies: int = 1  # every control message arrives so many times ...
    shuffle_s: float = 0.0  # ... within this time, in any order
    pull_fails: float = 0.0  # share of pulls that break
    partitions: int = 0
    worker_crashes: int = 0
    coordinator_crashes: int = 0
    freezes: int = 0
    disk_full: int = 0
    slow: float = 0.0  # share of nodes that train ten times as long
    spread_s: float = 60.0  # faults begin within this time


CALM = Faults()


@dataclass(frozen=True)
class Episode:
    """A fault that starts at one time and lasts for another."""

    kind: str  # "cut", "crash", "freeze", "full"
    at_s: float
    lasts_s: float
    nodes: tuple[int, ...]  # -1: the coordinator
    at_action: int = 0  # a crash strikes at this action from then on


def draw_episodes(faults: Faults, nodes: int, seed: int) -> list[Episode]:
    """Draw the partitions, crashes, freezes and full disks of a seed."""
    rng = stream(seed, "virtual", "episodes")
    out = []

    def add(kind: str, times: int, most_s: float, who: object) -> None:
        for _ in range(times):
            at, lasts = rng.uniform(0, faults.spread_s), rng.uniform(0.2, most_s)
            chosen = _pick(rng, nodes) if who == "group" else _one(rng, nodes, who)
            out.append(Episode(kind, at, lasts, chosen, int(rng.integers(0, 8))))

    add("cut", faults.partitions, 12.0, "group")
    add("crash", faults.worker_crashes, 6.0, "worker")
    add("crash", faults.coordinator_crashes, 4.0, "coordinator")
    add("freeze", faults.freezes, 14.0, "worker")
    add("full", faults.disk_full, 6.0, "any")
    return out


def _pick(rng: np.random.Generator, nodes: int) -> tuple[int, ...]:
    """The side of a partition on which the coordinator is not."""
    size = int(rng.integers(1, nodes))
    return tuple(sorted(rng.choice(nodes, size, replace=False).tolist()))


def _one(rng: np.random.Generator, nodes: int, who: object) -> tuple[int, ...]:
    if who == "coordinator" or (who == "any" and rng.random() < 0.4):
        return (-1,)
    return (int(rng.integers(nodes)),)


def random_faults(seed: int) -> Faults:
    """Draw a mixture of all faults, different for every seed."""
    rng = stream(seed, "virtual", "faults")
    return Faults(
        delay_s=(0.001, float(rng.choice([0.02, 0.1, 0.6]))),
        drop=float(rng.choice([0.0, 0.02, 0.1])),
        duplicate=float(rng.choice([0.0, 0.05, 0.3])),
        shuffle_s=float(rng.choice([0.0, 0.0, 0.5])),
        pull_fails=float(rng.choice([0.0, 0.05, 0.2])),
        partitions=int(rng.integers(0, 3)),
        worker_crashes=int(rng.integers(0, 5)),
        coordinator_crashes=int(rng.integers(0, 3)),
        freezes=int(rng.integers(0, 3)),
        disk_full=int(rng.integers(0, 2)),
        slow=float(rng.choice([0.0, 0.3])),
        spread_s=20.0,
    )
