"""Time of every compiled kernel against its NumPy reference, measured in turns in one process.

    python benchmarks/kernels.py --workers 100000 --repeat 5
    python benchmarks/kernels.py --workers 1000000 --only neighbours_within kept_edges

Workers have about 20 candidates each, and everybody pulls from log2(N) of them. The ratio is the
median over the repetitions of reference over kernel. A kernel stays where it is at least 1.5 at
100,000 workers.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from dystop import rng, sparse
from dystop.acceleration import Accelerated, kernel_at
from dystop.control import aggregation, laws, plan_check, priority, topology
from dystop.exchange import rules
from dystop.plan import links
from dystop.sparse import no_pairs
from dystop.world import World, channel, geometry, reach
from dystop_benchmarks.planning import fleet_of, params_of

Case = tuple[Accelerated[..., Any], Callable[[Callable[..., Any]], object]]
"""A pair, and a call of one of its two functions on the workload."""

_MODEL = 1_000_000  # numbers of a model


class Workload:
    """Arguments of the functions for one planned round."""

    def __init__(self, workers: int, seed: int = 0) -> None:
        self.workers, self.cap = workers, math.ceil(math.log2(workers))
        self.fleet, self.params = fleet_of(workers, 10, seed), params_of(workers)
        self.seen = World(self.params, workers, self.fleet.model_bytes, seed).observe(1, 0.0)
        self.graph, position = self.seen.reach, self.seen.position
        draw = np.random.default_rng(seed)
        self.active, self.staleness = draw.permutation(workers), draw.integers(0, 9, workers)
        self.shares = priority.label_shares(self.fleet.label_counts)
        self.priority = priority.first_phase_priority(
            priority.emd(self.shares, self.graph.dst, self.graph.src), self.seen.distance_m
        )
        self.ranked = topology.ranked_candidates(self.active, self.graph, self.priority)
        self.budget = self.seen.budget_of(np.arange(workers))
        self.pair = topology.connect(self.active, *self.ranked, self.budget, self.cap)
        self.links = links(*self.pair)
        self.pulled = self.links.by_receiver
        self.pulls = no_pairs(workers).add(*self.pair)
        self.mix = aggregation.size_rows(self.active, self.pulled, self.fleet.data_size)
        self.words = rng.bits(seed, "words", np.arange(self.graph.edges))
        self.address = rng.bits(seed, "fading", 1, *self.pair)
        self.snr = channel.mean_snr(
            np.asarray(0.1), geometry.distance(position, *self.pair), self.params.channel
        )
        self.still = np.arange(workers) % 10 > 0
        moved = np.where(self.still[:, None], position, position + 1.0)
        self.after = geometry.neighbours_within(moved, self.params.range_m, workers)
        self.models = draw.random((2, _MODEL), np.float32)


def cases(work: Workload) -> Iterator[Case]:
    """Yield every pair of kernel and reference with its call."""
    graph, seen, radio = work.graph, work.seen, work.params.channel
    ends = graph.dst, graph.src
    yield sparse.group, lambda f: f(work.workers, *work.pair, ascending=True)
    yield sparse.row_order, lambda f: f(*work.pair)
    yield sparse.find_edges, lambda f: f(graph, *work.pair)
    yield sparse.find_counts, lambda f: f(work.pulls, *ends)
    yield sparse.add_counts, lambda f: f(work.pulls, work.pulled)
    yield rng.fold_words, lambda f: f(work.words, work.words)
    yield rng.to_unit, lambda f: f(work.words)
    yield priority.emd, lambda f: f(work.shares, *ends)
    yield priority.second_phase_of_links, lambda f: f(work.pulls, 5, work.staleness)(*ends)
    yield laws.expected_exchange_s, lambda f: f(graph, seen.link_s, work.cap)
    yield topology.ranked_candidates, lambda f: f(work.active, graph, work.priority)
    yield topology.ptca_loop, lambda f: f(work.active, *work.ranked, work.budget, work.cap)
    yield aggregation.size_rows, lambda f: f(work.active, work.pulled, work.fleet.data_size)
    yield plan_check.all_in_reach, lambda f: f(graph, work.links)
    yield plan_check.mix_violations, lambda f: f(work.mix, work.pulled, 1e-9)
    yield rules.square_sum, lambda f: f(work.models[0])
    yield rules.square_gap, lambda f: f(*work.models)
    yield geometry.distance, lambda f: f(seen.position, *work.pair)
    yield (
        geometry.neighbours_within,
        lambda f: f(seen.position, work.params.range_m, work.workers),
    )
    yield reach.kept_edges, lambda f: f(graph, work.after, work.still)
    yield (
        channel.faded_rate_bps,
        lambda f: f(work.snr, work.address, radio.bandwidth_hz, radio.coherence_blocks),
    )


def seconds(call: Callable[[], object]) -> float:
    """Return the processor seconds of a call, of all its threads."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measured(case: Case, repeat: int) -> tuple[float, float, float]:
    """Return median seconds of reference and kernel, and the median of their ratios."""
    pair, run = case
    kernel = kernel_at(pair.path)
    if kernel is None:
        raise SystemExit(f"{pair.path} cannot be imported, or DYSTOP_KERNELS is off")
    run(kernel)  # compiles or loads it
    times = [
        (seconds(lambda: run(pair.reference)), seconds(lambda: run(kernel))) for _ in range(repeat)
    ]
    return (
        median(slow for slow, _ in times),
        median(fast for _, fast in times),
        median(slow / fast for slow, fast in times),
    )


def main() -> None:
    """Print one line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of kernels, all if absent")
    args = parser.parse_args()
    print(f"{'kernel':<40} {'reference':>12} {'kernel':>12} {'ratio':>8}")
    for case in cases(Workload(args.workers)):
        if args.only and case[0].path.partition(":")[2] not in args.only:
            continue
        slow, fast, ratio = measured(case, args.repeat)
        name = case[0].path.removeprefix("dystop.kernels.")
        print(f"{name:<40} {slow * 1e3:>9.1f} ms {fast * 1e3:>9.1f} ms {ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
