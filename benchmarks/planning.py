"""Cost of planning one round against the number of workers, each size in a process of its own.

    python benchmarks/planning.py --workers 1000,10000,100000,1000000

Everybody wakes in every round. Prints seconds of the first round (which also finds the neighbours)
and of a round, links, peak memory and the slope of log time. `dystop bench planner` measures the
same beside a straight NumPy twin.
"""

import argparse
import json
from dataclasses import asdict

import numpy as np

from dystop_benchmarks.planning import PlannerCost, measure_planner


def line(cost: PlannerCost) -> str:
    return (
        f"{cost.workers:>10,} {cost.candidates:>10.1f} {cost.active:>10,} {cost.links:>12,}"
        f" {cost.first_s:>8.3f} s {cost.round_s:>8.3f} s {cost.peak_bytes / 1e9:>6.2f} GB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1000,10000,100000", help="fleet sizes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--mobile", action="store_true", help="everybody walks")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    head = ("workers", "candidates", "active", "links", "first", "round", "peak")
    if not args.json:
        print(
            " ".join(
                f"{name:>{w}}" for name, w in zip(head, (10, 10, 10, 12, 10, 10, 9), strict=True)
            )
        )
    costs = []
    for n in map(int, args.workers.split(",")):
        costs.append(measure_planner(n, args.rounds, mobile=args.mobile))
        if not args.json:
            print(line(costs[-1]), flush=True)
    if args.json:
        print(json.dumps([asdict(cost) for cost in costs]))
    elif len(costs) > 1:
        x, y = np.log([c.workers for c in costs]), np.log([c.round_s for c in costs])
        print(f"slope of log(seconds of a round) over log(workers): {np.polyfit(x, y, 1)[0]:.2f}")


if __name__ == "__main__":
    main()
