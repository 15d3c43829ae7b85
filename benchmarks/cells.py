"""Planning only, round after round: one coordinator against cells, over the number of workers.

    python benchmarks/cells.py --workers 1000,10000,100000,1000000 --rounds 100 --out FOLDER

Every simulation runs in a process of its own. Seconds are CPU seconds. Prints a table; with --out
it writes costs.json and costs.png. With --again it draws from the costs.json that is there.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dystop.bench.cells import PlanCost, measure_plan
from dystop.report.figures.costs import plan_costs
from dystop.report.figures.svg import save

HEAD = (
    "workers", "coordinators", "round", "decision", "longest", "build", "peak", "staleness",
    "active", "links", "across", "alone", "status",
)  # fmt: skip


def row(cost: PlanCost) -> tuple[str, ...]:
    return (
        f"{cost.workers:,}", f"{cost.coordinators:,}", f"{cost.round_s:.3f} s",
        f"{cost.decision_s * 1e3:.1f} ms", f"{cost.longest_decision_s * 1e3:.1f} ms",
        f"{cost.build_s:.1f} s", f"{cost.peak_bytes / 1e9:.2f} GB", f"{cost.staleness:.3f}",
        f"{cost.active:,.0f}", f"{cost.links:,.0f}", f"{cost.links_across:,.0f}",
        f"{cost.alone:.3f}", f"{cost.status_bytes / 1e6:.2f} MB",
    )  # fmt: skip


def show(cells: Sequence[str]) -> None:
    print(" ".join(f"{text:>12}" for text in cells), flush=True)


def measured(workers: Sequence[int], rounds: int, cell: int) -> list[PlanCost]:
    costs = []
    for n in workers:
        for size in (n, cell) if n > cell else (n,):
            costs.append(measure_plan(n, rounds, size, region=cell))
            show(row(costs[-1]))
    return costs


def read(file: Path) -> list[PlanCost]:
    return [PlanCost(**cost | {"rounds_s": tuple(cost["rounds_s"])}) for cost in
            json.loads(file.read_text())]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1000,10000,100000", help="fleet sizes")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cell", type=int, default=10_000, help="workers of a cell, at most")
    parser.add_argument("--out", type=Path, help="folder of costs.json and costs.png")
    parser.add_argument("--again", action="store_true", help="draw what was measured before")
    args = parser.parse_args()
    show(HEAD)
    if args.again:
        costs = read(args.out / "costs.json")
        for cost in costs:
            show(row(cost))
    else:
        costs = measured([int(n) for n in args.workers.split(",")], args.rounds, args.cell)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "costs.json").write_text(json.dumps([asdict(c) for c in costs]) + "\n")
        figure = plan_costs(costs).figure
        assert figure is not None
        (args.out / "costs.png").write_bytes(save(figure, "png"))


if __name__ == "__main__":
    main()
