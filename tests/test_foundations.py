"""The ground everything stands on: sparse pairs, addressed randomness, errors, knobs, plans."""

import json
import zlib
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop import errors
from dystop.params import param, params_of, section
from dystop.plan import join_links, links, mix_of, no_links
from dystop.record import RoundRecord, from_json
from dystop.rng import bits, exponential, fold_in, normal, stream, uniform
from dystop.sparse import graph_of, ints, no_pairs
from dystop.types import Mailbox, Mechanism, no_mail
from support.rng_vectors import NAME, VECTOR
from support.strategies import pairs, random_fleet, random_view

quick = settings(derandomize=True, deadline=None, max_examples=150)


def split(chosen):
    return ints([i for i, _ in chosen]), ints([j for _, j in chosen])


# sparse


@quick
@given(st.data(), st.integers(1, 6))
def test_graph_equals_a_set_of_pairs(data, n):
    chosen = data.draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=20))
    graph, truth = graph_of(n, *split(chosen)), {(i, j) for i, j in chosen if i != j}
    assert list(zip(graph.dst.tolist(), graph.src.tolist(), strict=True)) == sorted(truth)
    assert (graph.n, graph.edges) == (n, len(truth))
    assert graph.degree.tolist() == [sum(i == k for i, _ in truth) for k in range(n)]
    for k in range(n):
        assert graph.row(k).tolist() == sorted(j for i, j in truth if i == k)
    every = [(i, j) for i in range(n) for j in range(n)]
    where = graph.find(*split(every)).tolist()
    found = [p for p, at in zip(every, where, strict=True) if at >= 0]
    assert found == sorted(truth)
    assert [at for at in where if at >= 0] == list(range(len(truth)))


@quick
@given(st.data(), st.integers(1, 5))
def test_keeping_edges(data, n):
    graph = graph_of(n, *split(data.draw(pairs(n))))
    size = graph.edges
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    kept = graph.keep(mask)
    assert (kept.dst.tolist(), kept.src.tolist()) == (
        graph.dst[mask].tolist(),
        graph.src[mask].tolist(),
    )
    assert (kept.n, int(kept.indptr[-1])) == (n, kept.edges)


@quick
@given(st.data(), st.integers(1, 5))
def test_pair_counts_equal_a_dict(data, n):
    counts, truth = no_pairs(n), {}
    every = [(i, j) for i in range(n) for j in range(n)]
    for _ in range(data.draw(st.integers(0, 4))):
        used = data.draw(st.lists(st.sampled_from(every), max_size=6))
        before, held = counts, counts.counts.copy()
        counts = counts.add(*split(used))
        assert np.array_equal(before.counts, held)
        for p in used:
            truth[p] = truth.get(p, 0) + 1
    assert counts.get(*split(every)).tolist() == [truth.get(p, 0) for p in every]
    assert (np.diff(counts.keys) > 0).all()
    assert len(counts.keys) == len(truth)


def test_a_million_pairs_stay_sparse():
    n = 1_000_000
    graph = graph_of(n, ints([n - 1, 3]), ints([0, n - 1]))
    assert graph.find(ints([n - 1, 3, 3]), ints([0, n - 1, 4])).tolist() == [1, 0, -1]
    assert no_pairs(n).add(ints([n - 1]), ints([n - 2])).get(ints([n - 1]), ints([n - 2])) == [1]


# rng


def test_streams_depend_on_their_address_only():
    first = stream(5, "a", 1).random(4)
    stream(5, "b", 1).random(100)
    assert np.array_equal(first, stream(5, "a", 1).random(4))
    others = [stream(6, "a", 1), stream(5, "a", 2), stream(5, "b", 1), stream(5, "a")]
    assert all(not np.array_equal(first, other.random(4)) for other in others)


@quick
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(0, 2**40))
def test_drawn_numbers_belong_to_identities_not_to_positions(who, seed):
    together = uniform(seed, "x", 3, who)
    assert together.tolist() == [float(uniform(seed, "x", 3, k)) for k in who]
    assert np.array_equal(together[::-1], uniform(seed, "x", 3, who[::-1]))
    assert ((together > 0) & (together < 1)).all()


def plain_bits(seed, name, *identity):
    """SplitMix64 along an address, in plain integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    word = mixed((zlib.crc32(name.encode()) + seed * golden) & mask)
    for part in identity:
        word = mixed((word + golden + part * golden) & mask)
    return word


@quick
@given(
    st.integers(-(2**40), 2**70),
    st.text(max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
)
def test_compiled_bits_equal_plain_integers(seed, name, identity):
    word = plain_bits(seed, name, *identity)
    assert int(bits(seed, name, *identity)) == word
    assert uniform(seed, name, *identity) == ((word >> 11) + 0.5) * 2.0**-53
    if identity:
        longer = bits(seed, name, *identity[:-1])
        assert int(fold_in(longer, identity[-1])) == word


@pytest.mark.parametrize(("seed", "identity", "word"), VECTOR)
def test_bits_of_the_shared_vector(seed, identity, word):
    """One address alone, and many at once, which compiled code computes."""
    assert plain_bits(seed, NAME, *identity) == word
    assert int(bits(seed, NAME, *identity)) == word
    *first, last = identity
    assert set(bits(seed, NAME, *first, np.full(200, last)).tolist()) == {word}


def test_pairs_are_ordered_and_names_matter():
    assert uniform(0, "x", 1, 2) != uniform(0, "x", 2, 1)
    assert uniform(0, "x", 1, 2) != uniform(0, "y", 1, 2)
    assert uniform(0, "x", 1, 2) != uniform(1, "x", 1, 2)
    assert bits(0, "x", np.arange(3)[:, None], np.arange(4)).shape == (3, 4)


def test_distributions_have_their_moments():
    who = np.arange(100_000)
    flat, bell, tail = uniform(1, "u", who), normal(1, "n", who), exponential(1, "e", who)
    assert flat.mean() == pytest.approx(0.5, abs=0.005)
    assert flat.var() == pytest.approx(1 / 12, abs=0.002)
    assert (bell.mean(), bell.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert (tail.mean(), tail.std()) == (pytest.approx(1, abs=0.02), pytest.approx(1, abs=0.03))
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 0.02


# errors and knobs


def test_every_error_has_its_exit_code():
    codes = {
        "DystopError": 1,
        "ConfigError": 2,
        "DataError": 2,
        "RunFolderError": 2,
        "CapacityError": 2,
        "StorageError": 3,
        "PlanError": 4,
        "VerificationError": 5,
    }
    for name, code in codes.items():
        kind = getattr(errors, name)
        assert issubclass(kind, errors.DystopError)
        assert kind.exit_code == code
        assert f"{name} " in errors.__doc__
    assert issubclass(errors.ConfigError, ValueError)


def test_the_nearest_name_is_suggested():
    assert "'ring'" in errors.nearest("rinng", ["complete", "ring"])
    assert errors.nearest("qqqq", ["complete", "ring"]) == ""
    assert errors.nearest("ring", []) == ""


@dataclass(frozen=True)
class Inner:
    size: int = param(3, "how large")


@dataclass(frozen=True)
class Outer:
    speed: float = param(1.5, "how fast")
    inner: Inner = section(Inner, "the inside")


def test_knobs_are_described_in_order():
    speed, inner = params_of(Outer)
    assert (speed.name, speed.type, speed.default, speed.meaning) == (
        "speed",
        "float",
        1.5,
        "how fast",
    )
    assert (inner.name, inner.type, inner.meaning) == ("inner", "Inner", "the inside")
    assert Outer().inner == Inner(3)


def test_mutable_defaults_are_refused():
    for bad in ([], {}, set()):
        with pytest.raises(TypeError, match="immutable"):
            param(bad, "no")


# plan


def test_links_of_several_kinds():
    some = links(ints([0, 1]), ints([1, 2]), fraction=0.5, background=True)
    more = links(ints([2]), ints([0]), stage=1, delta=True, pushed=True)
    both = join_links([some, more])
    assert len(both) == 3
    assert both.stage.tolist() == [0, 0, 1]
    assert both.fraction.tolist() == [0.5, 0.5, 1.0]
    assert both.delta.tolist() == both.pushed.tolist() == [False, False, True]
    assert both.background.tolist() == [True, True, False]
    assert both.take(ints([2, 0])).dst.tolist() == [2, 0]
    assert len(join_links([])) == len(no_links()) == 0


@quick
@given(st.data(), st.integers(1, 5))
def test_mix_keeps_every_triple_and_sorts_rows(data, n):
    every = [(i, j) for i in range(n) for j in range(n)]
    chosen = data.draw(st.lists(st.sampled_from(every), unique=True))
    weight = {p: float(k) for k, p in enumerate(chosen)}
    rows = mix_of(*split(chosen), np.array([weight[p] for p in chosen]))
    triples = zip(rows.dst.tolist(), rows.source.tolist(), rows.weight.tolist(), strict=True)
    assert list(triples) == [(i, j, weight[i, j]) for i, j in sorted(chosen)]
    assert rows.receiver.tolist() == sorted({i for i, _ in chosen})
    assert len(rows.indptr) == len(rows.receiver) + 1
    assert rows.receiver[rows.row_of].tolist() == rows.dst.tolist()


# types


def test_fleet_and_mailbox():
    fleet = random_fleet(0, 4, server=True)
    assert (fleet.workers, fleet.nodes) == (4, 5)
    assert fleet.epoch_steps.tolist() == [-(-d // 16) for d in fleet.data_size.tolist()]
    assert (fleet.label_counts.sum(axis=1) == fleet.data_size).all()
    box = Mailbox(ints([1, 1, 3]), ints([0, 2, 0]), ints([5, 6, 7]))
    assert [box.of(i).tolist() for i in range(4)] == [[], [0, 2], [], [0]]
    assert no_mail().of(0).tolist() == []


def test_a_view_draws_by_run_round_and_key():
    view = random_view(0, 3)
    assert view.rng("a").random() == view.rng("a").random()
    assert view.rng("a").random() != view.rng("b").random()


@pytest.mark.parametrize("by", ["link_s", "distance_m"])
@pytest.mark.parametrize("server", [False, True])
def test_the_nearest_neighbours_of_every_worker(by, server):
    for seed in range(20):
        view = random_view(seed, 7, server=server)
        cost = getattr(view, by)
        for k in (0, 1, 3, 9):
            expected = []
            for i in range(7):
                row = range(view.reach.indptr[i], view.reach.indptr[i + 1])
                near = sorted((cost[e], view.reach.src[e]) for e in row if view.reach.src[e] < 7)
                expected += [(i, j) for _, j in near[:k]]
            dst, src = view.k_nearest(k, by=by)
            assert list(zip(dst.tolist(), src.tolist(), strict=True)) == expected
            one = view.k_nearest(k, by=by, worker=2)
            assert list(zip(*one, strict=True)) == [pair for pair in expected if pair[0] == 2]


def test_nearest_neighbours_at_the_same_distance_go_by_id():
    view = random_view(0, 4, shape="complete", all_alive=True)
    view = replace(view, distance_m=np.ones(view.reach.edges))
    assert [x.tolist() for x in view.k_nearest(2, by="distance_m", worker=1)] == [[1, 1], [0, 2]]


def test_a_mechanism_must_plan():
    with pytest.raises(NotImplementedError, match=r"Mechanism.*`plan`"):
        Mechanism().plan({}, random_view(0, 2))
    assert Mechanism().init(random_fleet(0, 2)) == {}
    assert Mechanism().capabilities().queue_bound is None


# record


def record(**more):
    values = {f.name: 0 for f in fields(RoundRecord)}
    optional = dict.fromkeys((f.name for f in fields(RoundRecord) if f.default is None), None)
    return RoundRecord(**values | optional | {"staleness_histogram": [3], "notes": {}} | more)


def test_a_record_is_one_line_and_comes_back():
    one = record(round=4, clock_s=1.25, loss=None, accuracy=0.5, link_pairs=[[0, 1]])
    line = one.to_json()
    assert "\n" not in line
    assert from_json(line) == one
    assert "loss" not in json.loads(line)
    assert "positions" not in json.loads(line)


def test_what_is_not_a_record_is_refused():
    for line in ("[]", "{}", '{"round":1}', "not json", '"text"'):
        with pytest.raises(ValueError):
            from_json(line)
    with pytest.raises(ValueError):
        record(clock_s=float("nan")).to_json()


def test_fields_of_a_later_version_are_ignored():
    line = json.dumps(json.loads(record(round=2).to_json()) | {"new_field": 1})
    assert from_json(line).round == 2


def test_a_record_with_fields_missing_is_a_value_error():
    """A torn line that is still JSON must be told apart like any other that is no record."""
    with pytest.raises(ValueError):
        from_json('{"round":1,"clock_s":2.0}')
