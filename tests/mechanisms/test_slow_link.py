"""C-2 without a testbed: DySTop with one slow node, where link times are known exactly.

PTCA does not look at link times, and a round lasts as long as its slowest exchange (eq:duration).
Rounds that use the slow link are long even with perfect estimates. WAA can only avoid them where it
expects the times that exchanges really took (`estimate = "last"`).
"""

from statistics import mean

import numpy as np

from dystop.control.laws import LAWS, timetable
from dystop.control.round import advance, build_view, decide, initial_state
from dystop.mechanisms.dystop import DySTop
from dystop.sparse import graph_of_sorted
from dystop.types import Budgets, Fleet, Observation, Outcome, no_mail

NODES, SLOW, TENTH = 6, 2, 0.1
LINK_S = 0.33  # of a model at the full rate
BEFORE, AFTER = 20, 60  # rounds


def durations(mechanism, seed):
    """Return the durations of rounds; the rate of one node falls to a tenth after `BEFORE`."""
    rng = np.random.default_rng(seed)
    counts, full_s = rng.integers(20, 200, (NODES, 10)), rng.uniform(0.3, 1.2, NODES)
    fleet = Fleet(counts.sum(axis=1), counts, 32, 800_000, 100_000, seed)
    dst, src = np.nonzero(~np.eye(NODES, dtype=bool))
    reach, distance_m = graph_of_sorted(NODES, dst, src), rng.uniform(10, 90, len(dst))
    budget, rate = np.full(NODES, 6.0), np.ones(NODES)
    control, left_s, seconds = initial_state(fleet, mechanism), full_s.copy(), []
    for t in range(BEFORE + AFTER):
        rate[SLOW] = 1.0 if t < BEFORE else TENTH
        link_s = LINK_S / np.minimum(rate[dst], rate[src])
        present = np.ones(NODES, bool)
        seen = Observation(
            present, reach, distance_m, link_s, full_s, left_s, Budgets(budget), no_mail()
        )  # fmt: skip
        view = build_view(fleet, control, seen)
        plan, control = decide(mechanism, control, view)
        links, active = plan.links, plan.active
        shares = np.maximum(  # the models of a round share the rates of their ends
            np.bincount(links.dst, minlength=NODES)[links.dst] / rate[links.dst],
            np.bincount(links.src, minlength=NODES)[links.src] / rate[links.src],
        )
        table = timetable(LAWS["paper"](), plan, LINK_S * shares, left_s, full_s[active])
        none = np.zeros(len(links), bool)
        outcome = Outcome(
            table.duration_s, table.comm_s, LINK_S * shares, np.zeros(len(links), np.int64), none,
            np.zeros(len(active)), 0, active=active, dst=links.dst, src=links.src,
        )  # fmt: skip
        control = advance(mechanism, control, view, plan, outcome)
        left_s = np.maximum(left_s - table.duration_s, 0.0)
        left_s[active] = full_s[active]
        seconds.append(table.duration_s)
    return seconds


def slowdown(estimate):
    """Return how many times as long rounds take, as the mean over some fleets."""
    runs = [durations(DySTop(neighbours=2, estimate=estimate), seed) for seed in range(8)]
    return mean(mean(run[BEFORE:]) / mean(run[5:BEFORE]) for run in runs)


def test_rounds_slow_down_because_the_mechanism_uses_the_slow_link():
    expected, realised = slowdown("kth"), slowdown("last")
    print(f"rounds take {expected:.2f} times as long, with the last exchange times {realised:.2f}")
    assert expected > 3.0
    assert realised < 0.75 * expected
