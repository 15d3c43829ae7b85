"""D-Cliques: the partition, the swaps, the edges between cliques, and the two stages of a round."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import DPSGD, DCliques
from dystop.mechanisms.graphs.cliques import (
    OutOfReach,
    global_share,
    greedy_swap,
    inter_edges,
    out_of_reach,
    random_cliques,
    skew,
)
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.sparse import graph_of, ints
from support.contraction import complete_views, contraction
from support.engine_fixtures import components_for, run_to_end, weights
from support.strategies import dense, freeze, random_view
from support.unstable_world import ENGINES, check_unstable_run


def everyone(n):
    """All present and in reach of each other."""
    pairs = np.arange(n)[:, None] * n + np.arange(n)
    return OutOfReach(np.ones(n, bool), pairs[~np.eye(n, dtype=bool)])


def view_with(counts, reach=None, seed=0):
    n = len(counts)
    view = random_view(seed, n, shape="complete", all_alive=True)
    fleet = replace(view.fleet, label_counts=ints(counts), data_size=ints(counts.sum(axis=1)))
    return freeze(replace(view, fleet=fleet, reach=view.reach if reach is None else reach))


def one_class_each(n, seed):
    kind = stream(seed, "one class").permutation(np.repeat(np.arange(10), n // 10))
    return 50 * np.eye(10, dtype=np.int64)[kind]


def two_shards_each(n, seed):
    kind = stream(seed, "shards").permutation(np.repeat(np.arange(10), n // 5)).reshape(n, 2)
    return 25 * np.eye(10, dtype=np.int64)[kind].sum(axis=1)


def dirichlet(n, seed):
    rng = stream(seed, "dirichlet")
    share = rng.dirichlet(np.full(n, 0.4), 10)
    return ints([rng.multinomial(6000, p) for p in share]).T


def skews(cliques, counts):
    return skew(ints([counts[members].sum(axis=0) for members in cliques]), global_share(counts))


def swapped(counts, seed, steps=1000, apart=None):
    n = len(counts)
    first = random_cliques(n, 10, stream(seed, "first"))
    apart = apart or everyone(n)
    return first, greedy_swap(first, counts, apart, steps, stream(seed, "swap"))


@pytest.mark.parametrize(("n", "size"), [(1, 10), (9, 10), (10, 10), (23, 10), (7, 1), (12, 4)])
def test_cliques_are_a_partition(n, size):
    cliques = random_cliques(n, size, stream(1, "x"))
    assert sorted(np.concatenate(cliques).tolist()) == list(range(n))
    assert [len(c) for c in cliques[:-1]] == [size] * (len(cliques) - 1)
    assert 1 <= len(cliques[-1]) <= size


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("split", "before", "after", "worst"),
    [
        (one_class_each, (0.54, 0.74), (0.0, 0.0), 0.0),
        (two_shards_each, (0.35, 0.56), (0.0, 0.04), 0.1),
        (dirichlet, (0.3, 0.45), (0.04, 0.10), 0.2),
    ],
)
def test_greedy_swap_reaches_the_known_skews(split, before, after, worst, seed):
    counts = split(100, seed)
    first, last = swapped(counts, seed)
    assert before[0] <= skews(first, counts).mean() <= before[1]
    assert after[0] - 1e-9 <= skews(last, counts).mean() <= after[1] + 1e-9
    assert skews(last, counts).max() <= worst + 1e-9
    assert sorted(np.concatenate(last).tolist()) == list(range(100))
    assert [len(c) for c in last] == [10] * 10


@pytest.mark.parametrize("seed", range(3))
def test_skew_never_grows(seed):
    counts = dirichlet(40, seed)
    cliques = random_cliques(40, 10, stream(seed, "first"))
    begin = before = skews(cliques, counts).sum()
    for step in range(60):
        cliques = greedy_swap(cliques, counts, everyone(40), 1, stream(seed, "swap", step))
        now = skews(cliques, counts).sum()
        assert now <= before + 1e-12
        before = now
    assert before < begin


def test_a_swap_is_one_of_those_that_lower_the_sum():
    """Both cliques one-sided: whatever is exchanged, one member each way balances them."""
    counts = ints([[4, 0], [4, 0], [0, 4], [0, 4]])
    before = [ints([0, 1]), ints([2, 3])]
    seen = set()
    for seed in range(30):
        after = greedy_swap(before, counts, everyone(4), 1, stream(seed, "one"))
        assert skews(after, counts).tolist() == [0.0, 0.0]
        seen.add(tuple(after[0].tolist()))
    assert seen == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert before[0].tolist() == [0, 1]


def degrees(kind, n, seed=0):
    cliques = random_cliques(n, 10, stream(seed, "first"))
    i, j = inter_edges(kind, cliques, 10, everyone(n), stream(seed, "link"))
    of = np.empty(n, np.int64)
    for k, members in enumerate(cliques):
        of[members] = k
    assert (of[i] != of[j]).all()
    assert (i < j).all()
    return i, j, of, 9 + 2 * len(i) / n


@pytest.mark.parametrize(("n", "degree"), [(100, 9.9), (1000, 18.9)])
def test_full_linking_has_the_degree_of_its_closed_form(n, degree):
    i, j, of, found = degrees("full", n)
    k = n // 10
    assert found == pytest.approx(degree)
    assert found == pytest.approx(9 + (k - 1) / 10)
    pairs = set(zip(of[i].tolist(), of[j].tolist(), strict=True))
    assert len({(min(p), max(p)) for p in pairs}) == k * (k - 1) // 2
    load = np.bincount(np.append(i, j), minlength=n)
    assert load.max() - load.min() <= 1


def test_published_savings_of_a_thousand_workers():
    full, small = degrees("full", 1000)[3], degrees("smallworld", 1000)[3]
    assert 1 - full / 999 == pytest.approx(0.98, abs=0.005)
    assert 1 - 2 * full / 999 == pytest.approx(0.96, abs=0.005)
    assert small == pytest.approx(14.59, abs=0.02)
    assert 1 - small / full == pytest.approx(0.228, abs=0.002)


@pytest.mark.parametrize("kind", ["ring", "fractal", "smallworld", "full"])
@pytest.mark.parametrize("n", [20, 30, 100, 250])
def test_every_linking_connects_the_cliques(kind, n):
    i, j, of, _ = degrees(kind, n)
    graph = nx.Graph(zip(of[i].tolist(), of[j].tolist(), strict=True))
    assert len(graph) == len(set(of.tolist()))
    assert nx.is_connected(graph)


def test_ring_and_fractal_by_hand():
    i, _, _, _ = degrees("ring", 100)
    assert len(i) == 10
    i, _, _, _ = degrees("fractal", 1000)  # ten groups of ten, all pairs inside, then once more
    assert len(i) == 10 * 45 + 45


def test_least_loaded_members_carry_the_edges():
    cliques = [ints([0, 1, 2]), ints([3, 4, 5]), ints([6, 7, 8]), ints([9, 10, 11])]
    for seed in range(10):
        i, j = inter_edges("full", cliques, 10, everyone(12), stream(seed, "x"))
        assert np.bincount(np.append(i, j), minlength=12).tolist() == [1] * 12


def planned(mechanism, view, memory=None):
    plan, memory = mechanism.plan(memory or {}, view)
    check_plan(mechanism, plan, view)
    return plan, memory


@pytest.mark.parametrize("n", [1, 2, 3, 13, 40])
@pytest.mark.parametrize("clique_avg", [True, False])
def test_bytes_and_weights_of_a_round(n, clique_avg):
    mechanism = DCliques(clique_size=5, clique_avg=clique_avg)
    plan, memory = planned(mechanism, view_with(dirichlet(n, 1)))
    size = np.bincount(memory["clique"])
    inside = int((size * (size - 1)).sum())
    models = inside + 2 * len(memory["i"])
    assert int((~plan.links.delta).sum()) == models
    assert int(plan.links.delta.sum()) == (inside if clique_avg else 0)
    assert len(plan.mixes) == 1 + clique_avg
    W = dense(plan.mixes[-1], n)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)
    np.testing.assert_allclose(W, W.T)
    assert W.min() >= 0
    same = memory["clique"][:, None] == memory["clique"]
    assert (W[same] > 0).all()  # every clique is complete
    if clique_avg:
        np.testing.assert_allclose(dense(plan.mixes[0], n), same / size[memory["clique"]])
    assert planned(mechanism, view_with(dirichlet(n, 1)), memory)[1] is memory


def test_one_clique_is_complete_averaging():
    n = 8
    view = view_with(dirichlet(n, 0))
    plan, memory = planned(DCliques(), view)
    assert len(memory["i"]) == 0
    twin = DPSGD(topology="complete")
    other, _ = twin.plan(twin.init(view.fleet), view)
    for stage in plan.mixes:
        np.testing.assert_allclose(dense(stage, n), 1 / n)
    np.testing.assert_allclose(dense(other.mixes[0], n), 1 / n)
    measured = contraction(DCliques(clique_avg=False), complete_views(n), rounds=5)
    assert measured == pytest.approx(0, abs=1e-20)


def test_disagreement_shrinks_as_the_spectrum_says():
    mechanism, view_at = DCliques(clique_size=3, clique_avg=False), complete_views(12)
    plan, _ = planned(mechanism, view_at(1))
    value, vector = np.linalg.eigh(dense(plan.mixes[0], 12) - 1 / 12)
    top = int(np.argmax(np.abs(value)))
    measured = contraction(mechanism, view_at, rounds=3, start=vector[:, top])
    assert measured == pytest.approx(value[top] ** 2)


def test_auto_chooses_by_the_number_of_workers():
    assert DCliques()._inter(199) == "full"
    assert DCliques()._inter(200) == "smallworld"
    assert DCliques(inter="ring")._inter(500) == "ring"


def test_the_topology_depends_on_the_seed_and_not_on_the_round():
    view = view_with(dirichlet(30, 0))
    first, later = planned(DCliques(), view)[1], planned(DCliques(), replace(view, t=9))[1]
    assert np.array_equal(first["clique"], later["clique"])
    assert np.array_equal(first["i"], later["i"])
    other = replace(view, fleet=replace(view.fleet, seed=5))
    assert not np.array_equal(first["clique"], planned(DCliques(), other)[1]["clique"])


def islands(n):
    """Workers hear those of the same parity."""
    a, b = np.nonzero(np.equal.outer(np.arange(n) % 2, np.arange(n) % 2))
    return graph_of(n, ints(a), ints(b))


def test_swaps_bring_together_who_can_talk():
    n, counts = 40, one_class_each(40, 0)
    reach = islands(n)
    apart = out_of_reach(reach, np.ones(n, bool))
    first, last = swapped(counts, 0, apart=apart)
    assert sum(int(apart(c, c).sum()) for c in first) > 0
    assert sum(int(apart(c, c).sum()) for c in last) == 0
    assert skews(last, counts).mean() < skews(first, counts).mean()
    plan, memory = planned(DCliques(), view_with(counts, reach))
    assert plan.notes["unreachable"] == 0
    assert (memory["i"] % 2 == memory["j"] % 2).all()
    np.testing.assert_allclose(dense(plan.mixes[0], n).sum(axis=0), 1.0)


def test_what_cannot_talk_is_left_out_and_counted():
    n, counts = 10, one_class_each(10, 0)
    plan, _ = planned(DCliques(), view_with(counts, islands(n)))  # one clique of ten, two halves
    assert plan.notes["unreachable"] == 25
    for stage in plan.mixes:
        W = dense(stage, n)
        np.testing.assert_allclose(W, np.equal.outer(np.arange(n) % 2, np.arange(n) % 2) / 5)


def test_absent_workers_count_as_in_reach_when_cliques_are_formed():
    alive = np.array([True, False, True])
    apart = out_of_reach(graph_of(3, ints([]), ints([])), alive)
    everybody = np.arange(3)
    assert apart(everybody, everybody).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert not apart.is_empty


def test_every_member_of_a_clique_applies_the_same_update():
    """Training adds worker + 1; members get the mean, so that equal models stay equal."""
    mechanism = DCliques(clique_size=3, inter="ring")
    components = components_for(mechanism, 3, stop=Stop(rounds=1))
    _, state = run_to_end(components)
    assert weights(state) == [3.0, 4.0, 5.0]  # mean update 2 of all, then the own training
    cliques = DCliques(clique_size=3, inter="full")
    _, state = run_to_end(components_for(cliques, 6, stop=Stop(rounds=1)))
    assert np.mean(weights(state)) == pytest.approx(7.0)
    assert state.control.memory["clique"].tolist().count(0) == 3


def test_updates_are_averaged_before_models():
    """After the first stage all members have the same model if they started from the same one."""
    n = 6
    components = components_for(DCliques(clique_size=3), n, stop=Stop(rounds=1))
    _, state = run_to_end(components)
    clique = state.control.memory["clique"]
    plan, _ = DCliques(clique_size=3).plan(state.control.memory, view_with(np.full((n, 2), 4)))
    update = np.arange(1.0, n + 1)  # of the training at time 0
    mean = np.array([update[clique == c].mean() for c in clique])
    expected = dense(plan.mixes[1], n) @ mean + update
    np.testing.assert_allclose(weights(state), expected, rtol=1e-5)


@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_a_run_keeps_the_mean(timing):
    components = components_for(
        DCliques(clique_size=3), 7, stop=Stop(rounds=6), engine=EngineParams(timing=timing)
    )
    records, state = run_to_end(components)
    assert np.mean(weights(state)) == pytest.approx(7 * 4.0, rel=1e-5)
    assert len({r.links for r in records}) == 1


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("clique_avg", [True, False])
def test_it_survives_everything_at_once(engine, clique_avg):
    check_unstable_run(
        DCliques(clique_size=3, inter="smallworld", clique_avg=clique_avg), engine, rounds=30
    )
