"""Cost of planning one round (observe, view, WAA, PTCA, settle) against the number of workers.

    python benchmarks/planning.py --workers 1000,10000,100000

No training: only what the coordinator does. Candidates per worker stay at about 20, because the
area grows with the fleet. Prints seconds per round, links, peak memory and the slope of log time.
"""

import argparse
import json
import math
import resource
import time
from dataclasses import replace

import numpy as np

from dystop.control.round import decide, look, open_books, settle
from dystop.mechanisms import DySTop
from dystop.types import Fleet, Observation, Outcome
from dystop.world import World, WorldParams

CANDIDATES = 20
RANGE_M = 40.0


def fleet_of(n: int, rounds: int) -> Fleet:
    counts = np.random.default_rng(0).integers(1, 100, (n, 10))
    return Fleet(counts.sum(axis=1), counts, 32, 87_360, 4 * rounds, seed=0)


def measure(n: int, rounds: int) -> dict[str, float]:
    """Median seconds of a planned round, with half of the rounds in each phase."""
    side = math.sqrt(n * math.pi * RANGE_M**2 / CANDIDATES)
    fleet = fleet_of(n, rounds)
    mechanism = DySTop(phase_threshold=rounds // 2)
    world = World(WorldParams(area_m=(side, side), range_m=RANGE_M), n, fleet.model_bytes, 0)
    books, links, seconds = open_books(fleet, mechanism), 0, []
    waiting = np.random.default_rng(1).random(n) * 2
    edges, woken = 0, 0
    for _ in range(rounds):
        books = replace(books, queue=waiting)  # so that many wake in every round, not one
        begin = time.perf_counter()
        around = world.observe(books.t, books.clock_s)
        edges = around.reach.edges
        remaining = around.step_s * fleet.epoch_steps
        seen = Observation(
            around.alive,
            around.reach,
            around.distance_m,
            around.link_s,
            around.step_s,
            remaining,
            around.budget,
        )
        view = look(fleet, books, seen)
        plan, books = decide(mechanism, books, view)
        moved = world.transfer(books.t, books.clock_s, plan.links.dst, plan.links.src, 1.0)
        none = np.zeros(len(plan.active))
        size = np.full(len(plan.links), fleet.model_bytes)
        outcome = Outcome(1.0, none, moved.seconds, size, moved.lost, none, 0, active=plan.active)
        _, books = settle(mechanism, books, view, plan, outcome)
        links += len(plan.links)
        woken += len(plan.active)
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "workers": n,
        "candidates": edges / n,
        "active": woken // rounds,
        "links": links // rounds,
        "first_s": seconds[0],
        "round_s": float(np.median(seconds[1:])) if rounds > 1 else seconds[0],
        "peak_gb": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1000,10000,100000", help="fleet sizes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(int(n), args.rounds) for n in args.workers.split(",")]
    if args.json:
        print(json.dumps(rows))
        return
    names = ("workers", "candidates", "active", "links")
    print(" ".join(f"{name:>10}" for name in names), f"{'first':>9} {'round':>9} {'peak':>8}")
    for row in rows:
        print(
            f"{row['workers']:>10,} {row['candidates']:>10.1f} {row['active']:>10,}"
            f" {row['links']:>10,}"
            f" {row['first_s']:>7.3f} s {row['round_s']:>7.3f} s {row['peak_gb']:>5.2f} GB"
        )
    if len(rows) > 1:
        n, s = np.log([r["workers"] for r in rows]), np.log([r["round_s"] for r in rows])
        print(f"slope of log(seconds per round) over log(workers): {np.polyfit(n, s, 1)[0]:.2f}")


if __name__ == "__main__":
    main()
