"""Benchmark of planning only: a simulation of many rounds, with one coordinator or in cells.

A worker has about 20 others in reach at every size, because the area grows with the fleet. DySTop
decides with at most 14 in-neighbours and a V that grows with the workers of a coordinator, so that
staleness and time weigh the same at every size. One coordinator is one cell: its records are those
of `dystop run engine.train=false`. Every size is measured in a process of its own:

    python -m dystop.bench.cells '{"workers": 10000, "rounds": 20, "cell": 1000, "seed": 0}'
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from dystop.bench.planning import params_of
from dystop.control.cells import cells_of
from dystop.control.stopping import Evaluate, Stop
from dystop.data import PartitionParams, SyntheticParams, owners, split_counts
from dystop.data.generated.images import synthetic_labels
from dystop.mechanisms.dystop import DySTop
from dystop.simulator.cells import CellRound, simulate_cells
from dystop.simulator.params import EngineParams
from dystop.simulator.state import Components
from dystop.sparse import Floats, Ints, ints
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.codec import encode
from dystop.testbed.protocol.messages import ExecuteAck, Heartbeat, Report, Used
from dystop.training.flat import Layout
from dystop.training.trainers.no_training import NoTraining
from dystop.types import Fleet
from dystop.world import World
from dystop.world.params import Budget

NEIGHBOURS = 14
_V_PER_WORKER = 0.1  # the paper's V = 10 for 100 workers
_STEPS = 10  # mini-batches of a local training
_SAMPLES = 20  # of a worker, on average
_MODEL_BYTES = 87_360  # of the CNN


@dataclass(frozen=True)
class PlanCost:
    """What a simulation cost and what it gave; means are over rounds."""

    workers: int
    cell: int  # largest number of workers of a coordinator
    coordinators: int
    rounds: int
    build_s: float  # CPU seconds: labels, positions, neighbours
    round_s: float  # CPU seconds of a round of the simulation
    rounds_s: tuple[float, ...]
    wall_s: float  # of all rounds
    decision_s: float  # CPU seconds of one coordinator for a round: to decide and to settle
    longest_decision_s: float  # of the coordinator with the most work
    peak_bytes: int
    clock_s: float  # simulated seconds at the end
    staleness: float  # mean over workers and rounds
    staleness_max: int
    active: float  # workers
    links: float  # that arrived
    links_across: float  # whose ends are in different regions of `region` workers
    region: int
    border: float  # workers of other cells that a coordinator knows
    alone: float  # duration of a round that waits for the members of a cell only, over a round's
    status_bytes: float  # that one coordinator hears in a round


def measure_plan(
    workers: int, rounds: int, cell: int, seed: int = 0, region: int | None = None
) -> PlanCost:
    """Measure a simulation in a process of its own.

    Args:
        workers: Number of workers.
        rounds: Rounds to simulate.
        cell: Workers of a coordinator, at most; `workers` for one coordinator.
        seed: Seed of positions, labels and channel.
        region: Size of the regions between which links are counted; by default the cells.
    """
    job = {"workers": workers, "rounds": rounds, "cell": cell, "seed": seed, "region": region}
    command = [sys.executable, "-m", "dystop.bench.cells", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"planning for {workers:,} workers failed:\n{done.stderr}")
    cost: dict[str, Any] = json.loads(done.stdout)
    return PlanCost(**cost | {"rounds_s": tuple(cost["rounds_s"])})


def components_of(workers: int, rounds: int, cell: int, seed: int) -> Components:
    """Return a simulation without models."""
    labels = synthetic_labels(SyntheticParams(train=_SAMPLES * workers), seed)
    owner = owners(labels.y_train, workers, PartitionParams("dirichlet", phi=0.4), seed)
    counts = split_counts(labels.y_train, labels.classes, owner, workers)
    fleet = Fleet(counts.sum(axis=1), counts, 32, _MODEL_BYTES, rounds, seed)
    params = params_of(workers, budget=Budget(models=2.0 * NEIGHBOURS))
    world = World(params, workers, _MODEL_BYTES, seed)
    cells = int(cells_of(world.observe(1, 0.0).position, cell).max()) + 1
    return Components(
        fleet=fleet,
        mechanism=DySTop(V=_V_PER_WORKER * workers / cells, neighbours=NEIGHBOURS),
        world=world,
        trainer=NoTraining(Layout((), (), ()), fleet.data_size, fleet.batch),
        engine=EngineParams(train=False),
        stop=Stop(rounds=rounds),
        evaluate=Evaluate(),
        steps=np.full(workers, _STEPS),
        topology=False,
    )


@dataclass(frozen=True)
class StatusSizes:
    """Bytes of the testbed's messages that tell a coordinator about a worker."""

    activation: int  # acknowledged order, "mixed" without links, "trained"
    link: int  # one line of "mixed" for each model that was pulled
    heartbeat: int
    heartbeat_s: float  # seconds between two heartbeats

    def heard(
        self, active: Ints, links: Ints, members: Ints, border: Ints, duration_s: float
    ) -> Floats:
        """Return the bytes that each coordinator hears in a round, [C].

        The state of a worker of the border comes once in a round, as one heartbeat, from the
        coordinator of its cell.
        """
        beats = members * duration_s / self.heartbeat_s + border
        return ints(active * self.activation + links * self.link) + beats * self.heartbeat


def status_sizes() -> StatusSizes:
    """Measure typical messages as the testbed encodes them."""
    digest = "0" * 64
    used = Used(9_999, 0, 25, 25, digest, _MODEL_BYTES, 0.123)
    mixed = Report(100, "mixed", (), (), 25, 25, digest, 0.123, 0.456)
    trained = Report(100, "trained", (), (), 26, 26, digest, 0.0, 1.234, 10, 320, 0.456)
    two = len(encode(Report(100, "mixed", (used, used), (), 25, 25, digest, 0.123, 0.456)))
    one = len(encode(Report(100, "mixed", (used,), (), 25, 25, digest, 0.123, 0.456)))
    acknowledged = len(encode(ExecuteAck(100, "accepted", 1)))
    return StatusSizes(
        activation=acknowledged + len(encode(mixed)) + len(encode(trained)),
        link=two - one,
        heartbeat=len(encode(Heartbeat(1000, 1, "training", 100))),
        heartbeat_s=Timeouts().heartbeat_s,
    )


def _timed_rounds(components: Components, cell: int) -> Iterator[tuple[CellRound, float]]:
    """Yield every round with its CPU seconds."""
    began_s = time.process_time()
    for found in simulate_cells(components, cell):
        yield found, time.process_time() - began_s
        began_s = time.process_time()


def _measure(workers: int, rounds: int, cell: int, seed: int, region: int | None) -> PlanCost:
    """Warm up on a small fleet, then simulate. Runs in the child process."""
    import resource  # not on every system, and only needed here

    for _ in simulate_cells(components_of(64, 8, 16, seed), 16):
        pass  # loads compiled functions and modules
    built_s = time.process_time()
    components = components_of(workers, rounds, cell, seed)
    position = components.world.observe(1, 0.0).position
    built_s = time.process_time() - built_s
    cell_of, region_of = cells_of(position, cell), cells_of(position, region or cell)
    cells, sizes, seconds, began_s = int(cell_of.max()) + 1, status_sizes(), [], time.perf_counter()
    facts: list[dict[str, float]] = []
    border = ints([])
    for found, took_s in _timed_rounds(components, cell):
        seconds.append(took_s)
        border = ints([len(one.cell.border) for one in found.coordinators])
        facts.append(_facts(found, cell_of, region_of, sizes, border))
        last = found.record
        del found
    mean = {name: fmean(fact[name] for fact in facts) for name in facts[0]}
    return PlanCost(
        workers=workers,
        cell=cell,
        coordinators=cells,
        rounds=len(facts),
        build_s=built_s,
        round_s=fmean(seconds),
        rounds_s=tuple(seconds),
        wall_s=time.perf_counter() - began_s,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        clock_s=last.clock_s,
        staleness_max=int(max(fact["staleness_max"] for fact in facts)),
        region=region or cell,
        border=float(border.mean()),
        **{name: value for name, value in mean.items() if name != "staleness_max"},
    )


def _facts(
    found: CellRound, cell_of: Ints, region_of: Ints, sizes: StatusSizes, border: Ints
) -> dict[str, float]:
    """Return the numbers of one round."""
    record, links, cells = found.record, found.plan.links, len(border)
    active = ints(np.bincount(cell_of[found.plan.active], minlength=cells))
    into = ints(np.bincount(cell_of[links.dst], minlength=cells))
    members = ints(np.bincount(cell_of, minlength=cells))
    heard = sizes.heard(active, into, members, border, record.duration_s)
    return {
        "decision_s": float(found.work_s.mean()),
        "longest_decision_s": float(found.work_s.max()),
        "staleness": record.staleness_mean,
        "staleness_max": record.staleness_max,
        "active": record.active,
        "links": record.links,
        "links_across": float((region_of[links.dst] != region_of[links.src]).sum()),
        "alone": float(found.alone_s.mean() / record.duration_s),
        "status_bytes": float(heard.mean()),
    }


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(**json.loads(sys.argv[1])))))  # noqa: T201
