"""How well does WAA know the exchange times that it decides by?

    python benchmarks/exchange_estimates.py [KEY=VALUE ...]

WAA sorts workers by the time that their next exchange will take, before PTCA has chosen the links.
DySTop plans 120 simulated seconds with 100 workers under each value of `mechanism.estimate`,
without training. A line shows what active workers expected and what their exchanges took.
"""

import sys
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.stats import spearmanr

from dystop.config import read_experiment
from dystop.mechanisms import DySTop
from dystop.runs.building import build
from dystop.simulator import no_round, run_rounds
from dystop.simulator.round import begin

ESTIMATES = ("kth", "ranked", "max", "last")
WORDS = [
    "engine.train=false", "engine.ahead=false", "fleet.workers=100", "data.name=synthetic",
    "data.options.train=60000", "data.options.shape=[1, 2, 2]", "model.name=softmax",
    "model.wire_bytes=87360", "data.phi=0.4", "stop.seconds=120", "stop.rounds=100000",
]  # fmt: skip


@dataclass(frozen=True)
class Watched(DySTop):
    """DySTop that keeps every expectation beside what came of it."""

    newest: dict = field(default_factory=dict, compare=False)
    pairs: list = field(default_factory=list, compare=False)

    def plan(self, memory, view):
        """Plan as DySTop does, after a look back at the last round."""
        if view.last is not None and self.newest:
            self.pairs.append((self.newest["expected"][view.last.active], view.last.comm_s))
        return super().plan(memory, view)

    def _expected_exchange_s(self, memory, view, cap):
        self.newest["expected"] = super()._expected_exchange_s(memory, view, cap)
        return self.newest["expected"]


def measure(estimate: str, words: list[str]) -> str:
    """Plan one run, and return its line of the table."""
    read = read_experiment(None, [*WORDS, f"mechanism.estimate={estimate}", *words])
    keys = {k: v for k, v in vars(read.mechanism).items() if not k.startswith("_")}
    watched = Watched(**keys)
    components = replace(build(read).components, mechanism=watched)
    records = [record for record, _ in run_rounds(components, begin(components), no_round)]
    expected, took = (np.concatenate(column) for column in zip(*watched.pairs, strict=True))
    pulled = took > 0
    expected, took = expected[pulled], took[pulled]
    active = np.mean([r.active for r in records])
    stale = np.mean([r.staleness_mean for r in records])
    return (
        f"| `{estimate}` | {expected.mean() * 1e3:.0f} ms | {took.mean() * 1e3:.0f} ms | "
        f"{spearmanr(expected, took).statistic:.2f} | {len(records)} | {active:.1f} | {stale:.2f} |"
    )


def main() -> None:
    """Print the table."""
    print("| estimate | expected | took | rank correlation | rounds | active | staleness |")
    print("|---|---|---|---|---|---|---|")
    for estimate in ESTIMATES:
        print(measure(estimate, sys.argv[1:]), flush=True)


if __name__ == "__main__":
    main()
