"""Seeds of drop, duplication, reordering, partition, crash, freeze and full disk (A-3, A-4).

A failing seed can be repeated: `pytest tests/virtual -k seed17-`, or for any other seed
`DYSTOP_SEEDS=12345-12346 pytest tests/virtual -m chaos -k many`.
"""

import os

import pytest

from dystop.mechanisms import MECHANISMS
from virtual.build import Case, cluster_of, findings_of, play, random_case, run_facts
from virtual.faults import Faults


def assert_correct_run(case: Case) -> None:
    cluster = play(case)
    assert cluster.finished == f"{case.rounds} rounds are over", f"seed {case.seed}"
    assert findings_of(cluster) == [], f"seed {case.seed}, {case.mechanism.name}"


@pytest.mark.parametrize("seed", range(200), ids="seed{}-".format)
def test_random_faults_violate_no_invariant(seed):
    assert_correct_run(random_case(seed, workers=4, rounds=20))


def test_a_seed_gives_the_same_run_twice():
    case = random_case(11, workers=4, rounds=12)
    one, two = play(case), play(case)
    assert [a.log_lines for a in one.nodes] == [a.log_lines for a in two.nodes]
    assert one.schedule.now_s == two.schedule.now_s


@pytest.mark.chaos
@pytest.mark.parametrize("block", range(100))
def test_many_seeds(block):
    """A-4: 10,000 seeds of 50 rounds with 8 workers, or the range DYSTOP_SEEDS=from-to."""
    chosen = range(1000 + 100 * block, 1100 + 100 * block)
    if "DYSTOP_SEEDS" in os.environ:
        lo, hi = (int(k) for k in os.environ["DYSTOP_SEEDS"].split("-"))
        chosen = range(lo, hi) if block == 0 else range(0)
    for seed in chosen:
        assert_correct_run(random_case(seed, workers=8, rounds=50))


@pytest.mark.parametrize("node", [-1, 0])
@pytest.mark.parametrize("action", range(45))
def test_a_crash_at_any_action(node, action):
    """The crash comes before, between or after the actions that follow a commit."""
    case = Case(MECHANISMS["dystop"](), workers=3, rounds=4, seed=action)
    cluster = cluster_of(case)
    process = cluster.coordinator if node < 0 else cluster.nodes[node]
    cluster.schedule.after(0.4, lambda: setattr(process, "crash_in", action))
    cluster.schedule.after(8.0, lambda: None if process.up else cluster.revive(process))
    cluster.run()
    assert cluster.finished == "4 rounds are over"
    assert findings_of(cluster) == []


def test_the_cluster_injects_all_kinds_of_faults():
    """Every process crashes, and messages are lost, repeated and late."""
    crashed, outcomes, answers = set(), set(), set()
    for seed in range(24):
        cluster = cluster_of(random_case(seed, workers=4, rounds=8))
        crash = cluster.crash
        cluster.crash = lambda process, crash=crash: (crashed.add(process.node), crash(process))
        cluster.run()
        outcomes |= {outcome for _, _, outcome in run_facts(cluster).outcomes}
        lines = [entry for process in cluster.nodes for entry in process.log_lines]
        answers |= {entry["state"] for entry in lines if entry["kind"] == "order"}
    assert crashed >= {-1, 0, 1, 2, 3}
    assert outcomes >= {"DONE", "FAILED", "LATE"}
    assert answers >= {"accepted", "queued", "duplicate"}


def test_runs_survive_full_disks():
    full = Faults(disk_full=6, spread_s=20.0)
    for seed in range(6):
        assert_correct_run(Case(MECHANISMS["dystop"](), rounds=15, seed=seed, faults=full))
