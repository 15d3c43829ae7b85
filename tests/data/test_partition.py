"""Partitions of a data set over workers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.data import (
    PartitionParams,
    describe_partition,
    emd_to_global,
    label_counts,
    owners,
    partition,
    scheme_of,
    shards_of,
    split_counts,
)
from dystop.data.schemes import power_law_shares, quantity_shares, sized_owners
from dystop.errors import ConfigError, DataError
from dystop.rng import stream

CLASSES = 4
SCHEMES = ["iid", "dirichlet", "quantity", "power-law", "shards", "column"]


@st.composite
def cases(draw):
    min_size = draw(st.integers(1, 3))
    workers = draw(st.integers(1, 12))
    extra = draw(st.lists(st.integers(0, CLASSES - 1), max_size=60))
    labels = [k % CLASSES for k in range(workers * 3)] + extra
    how = PartitionParams(
        draw(st.sampled_from(SCHEMES)),
        phi=draw(st.sampled_from([1e-3, 0.1, 0.5, 1.0, 100.0])),
        exponent=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        shards=draw(st.integers(1, 3)),
    )
    if how.partition == "column":
        how, min_size = replace(how, column="writer"), 1
    writers = np.array([f"w{k % (workers + 2)}" for k in range(len(labels))])
    more = {
        "columns": {"writer": writers},
        "min_size": min_size if how.partition != "shards" else 1,
    }
    return np.array(labels), workers, how, draw(st.integers(0, 2**32)), more


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases())
def test_split_covers_all_once_and_leaves_nobody_without(case):
    labels, workers, how, seed, more = case
    shards = partition(labels, workers, how, seed, **more)
    assert len(shards) == workers
    assert all(s.dtype == np.int64 and (np.diff(s) > 0).all() for s in shards)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    assert min(len(s) for s in shards) >= more["min_size"]
    if how.partition == "iid" or (how.partition == "power-law" and how.exponent == 0.0):
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
    if how.partition == "column":
        writers = [set(more["columns"]["writer"][own].tolist()) for own in shards]
        assert sum(map(len, writers)) == len(set.union(*writers))  # nobody's samples are divided
        assert max(map(len, writers)) - min(map(len, writers)) <= 1


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases())
def test_split_is_deterministic_and_counts_match(case):
    labels, workers, how, seed, more = case
    shards = partition(labels, workers, how, seed, **more)
    again = partition(labels.copy(), workers, how, seed, **more)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    counts = label_counts(labels, shards, CLASSES)
    slow = [[int((labels[s] == k).sum()) for k in range(CLASSES)] for s in shards]
    assert counts.tolist() == slow


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases())
def test_counts_without_lists_of_samples(case):
    labels, workers, how, seed, more = case
    owner = owners(labels, workers, how, seed, **more)
    counts = split_counts(labels, CLASSES, owner, workers)
    assert np.array_equal(counts, label_counts(labels, shards_of(owner, workers), CLASSES))


def slow_shards(labels, workers, shards, seed):
    """McMahan et al.: sort by label, cut into equal pieces, deal some to each worker."""
    rng = stream(seed, "partition", "shards")
    order = sorted(rng.permutation(len(labels)).tolist(), key=lambda k: labels[k])
    pieces = workers * shards
    cuts = [-(-k * len(labels) // pieces) for k in range(pieces + 1)]
    dealt = rng.permutation(pieces).tolist()
    own = [[] for _ in range(workers)]
    for piece, turn in enumerate(dealt):
        own[turn // shards] += order[cuts[piece] : cuts[piece + 1]]
    return [sorted(samples) for samples in own]


def slow_sizes(samples, shares, seed):
    """Cut a random permutation where the cumulated shares say."""
    order = stream(seed, "partition", "order").permutation(samples).tolist()
    ends = [int(sum(shares[: k + 1]) * samples) for k in range(len(shares) - 1)] + [samples]
    return [sorted(order[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def slow_groups(values, workers, seed):
    """Deal the groups in a random order, one to each worker in turn."""
    groups = sorted(set(values))
    turn = stream(seed, "partition", "column").permutation(len(groups)).tolist()
    worker = {group: turn[k] % workers for k, group in enumerate(groups)}
    return [[k for k, v in enumerate(values) if worker[v] == i] for i in range(workers)]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 40), st.integers(0, 99))
def test_schemes_equal_their_slow_twins(workers, shards, more, seed):
    labels = np.array([k * k % CLASSES for k in range(workers * shards + more)])
    values = [f"user {k % (workers + 1)}" for k in range(len(labels) + 1)]

    def drawn(how, labels=labels):
        own = partition(labels, workers, how, seed, columns={"user": np.array(values)})
        return [samples.tolist() for samples in own]

    assert drawn(PartitionParams("shards", shards=shards)) == slow_shards(
        labels, workers, shards, seed
    )
    column = PartitionParams("column", column="user")
    by_user = [s.tolist() for s in shards_of(owners(np.zeros(len(values), int), workers, column,
        seed, columns={"user": np.array(values)}), workers)]  # fmt: skip
    assert by_user == slow_groups(values, workers, seed)
    rank = stream(seed, "partition", "power-law").permutation(workers).tolist()
    size = [1 / (k + 1) for k in rank]
    np.testing.assert_allclose(power_law_shares(workers, 1.0, seed), np.divide(size, sum(size)))
    for shares in (power_law_shares(workers, 1.0, seed), quantity_shares(workers, 0.5, seed)):
        cut = shards_of(sized_owners(500, shares, seed), workers)
        assert [s.tolist() for s in cut] == slow_sizes(500, shares.tolist(), seed)


def test_quantity_shares_follow_the_distribution():
    # The share of a worker has mean 1/N and variance (1/N)(1-1/N)/(N phi + 1).
    share = np.array([quantity_shares(4, 0.7, seed) for seed in range(2000)])
    np.testing.assert_allclose(share.sum(axis=1), 1)
    np.testing.assert_allclose(share.mean(axis=0), 1 / 4, atol=0.02)
    np.testing.assert_allclose(share.var(), (1 / 4) * (3 / 4) / (4 * 0.7 + 1), rtol=0.1)


def test_shards_worked_by_hand():
    # Four classes of three samples, two workers, two shards each: four pieces of one class each.
    labels = np.array([0, 1, 2, 3] * 3)
    own = partition(labels, 2, PartitionParams("shards", shards=2), seed=0)
    assert [len(samples) for samples in own] == [6, 6]
    assert [len(set(labels[samples].tolist())) for samples in own] == [2, 2]


def test_power_law_worked_by_hand():
    # Shares 1, 1/2, 1/3 of 11/6: of 110 samples 60, 30 and 20.
    own = partition(np.zeros(110, int), 3, PartitionParams("power-law"), seed=4)
    assert sorted(map(len, own)) == [20, 30, 60]


def test_groups_worked_by_hand():
    writers = np.array(["ann", "bob", "cem", "ann", "cem", "dia"])
    how = PartitionParams("column", column="writer")
    own = partition(np.zeros(6, int), 4, how, seed=1, columns={"writer": writers})
    assert sorted(s.tolist() for s in own) == [[0, 3], [1], [2, 4], [5]]
    own = partition(np.zeros(6, int), 2, how, seed=1, columns={"writer": writers})
    assert [len(set(writers[s].tolist())) for s in own] == [2, 2]


def test_sizes_vary_and_labels_do_not():
    labels = np.arange(20_000) % 10
    for how in (PartitionParams("quantity", phi=0.3), PartitionParams("power-law", exponent=1.5)):
        counts = label_counts(labels, partition(labels, 10, how, 0), 10)
        summary = describe_partition(counts)
        assert summary.size_max > 5 * summary.size_median
        large = counts[counts.sum(axis=1) > 1000]
        assert emd_to_global(large).max() < 0.2


def test_shards_hold_few_classes():
    labels = np.arange(6000) % 10
    own = partition(labels, 100, PartitionParams("shards"), 0)
    assert {len(samples) for samples in own} == {60}
    assert Counter(len(set(labels[samples].tolist())) for samples in own).keys() <= {1, 2}


def test_seeds_give_different_splits():
    labels = np.arange(200) % 10
    for scheme in ("iid", "dirichlet", "quantity", "power-law", "shards"):
        a, b = (partition(labels, 5, PartitionParams(scheme, phi=0.5), s) for s in (0, 1))
        assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_class_does_not_disturb_another():
    # The draw for a class is addressed by the class: dropping class 1 leaves class 0 where it was.
    labels = np.repeat([0, 1], 300)
    both = partition(labels, 3, PartitionParams("dirichlet", phi=1.0), 5)
    alone = partition(labels[:300], 3, PartitionParams("dirichlet", phi=1.0), 5)
    assert all(np.array_equal(b[b < 300], a) for a, b in zip(alone, both, strict=True))


def test_smaller_phi_is_more_skewed():
    labels = np.arange(5000) % 10
    emd, classes = [], []
    for phi in (0.1, 0.4, 0.7, 1.0, 10.0, 1000.0):
        shards = partition(labels, 20, PartitionParams("dirichlet", phi=phi), 3)
        summary = describe_partition(label_counts(labels, shards, 10))
        emd.append(summary.emd_mean)
        classes.append(summary.classes_mean)
    assert emd == sorted(emd, reverse=True)
    assert classes == sorted(classes)
    assert emd[0] > 1.2
    assert emd[-1] < 0.1


def test_dirichlet_shares_follow_the_distribution():
    # With one class, D_i / n is a Dirichlet share: mean 1/N, variance (1/N)(1-1/N)/(N phi + 1).
    n, workers, phi = 2_000, 4, 0.7
    labels = np.zeros(n, int)
    sizes = np.array(
        [
            [
                len(s)
                for s in partition(labels, workers, PartitionParams("dirichlet", phi=phi), seed)
            ]
            for seed in range(400)
        ]
    )
    share = sizes / n
    expected = (1 / workers) * (1 - 1 / workers) / (workers * phi + 1)
    np.testing.assert_allclose(share.mean(axis=0), 1 / workers, atol=0.04)
    np.testing.assert_allclose(share.var(), expected, rtol=0.1)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "quantity", "power-law"])
def test_as_many_workers_as_samples(scheme):
    shards = partition(np.arange(500) % 7, 500, PartitionParams(scheme, phi=0.05), 0)
    assert [len(s) for s in shards] == [1] * 500


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_too_few_samples_are_refused(scheme):
    with pytest.raises(DataError, match=r"9 training samples .*5 workers .*2 .*10"):
        partition(np.zeros(9, int), 5, PartitionParams(scheme), 0, min_size=2)


@pytest.mark.parametrize(
    ("how", "more", "message"),
    [
        ({"partition": "dirichlett"}, {}, "partition = 'dirichlett'.*'dirichlet'"),
        ({"phi": 0.0}, {}, r"phi = 0\.0.* 0 "),
        ({"phi": float("nan")}, {}, "phi = nan"),
        ({"partition": "shards", "shards": 0}, {}, "shards = 0.*>= 1"),
        ({}, {"workers": 0}, "workers = 0.*>= 1"),
        ({}, {"min_size": 0}, "min_size = 0.*>= 1"),
        (
            {"partition": "column", "column": "writr"},
            {"columns": {"writer": np.arange(10), "age": np.arange(10)}},
            "'writr'.*writer, age.*did you mean 'writer'",
        ),
        ({"partition": "column", "column": "x"}, {}, "'x'.*no column"),
    ],
)
def test_bad_settings_are_refused(how, more, message):
    more = {"workers": 3, "seed": 0} | more
    with pytest.raises(ConfigError, match=message):
        partition(
            np.arange(10) % 2, how=PartitionParams(**{"partition": "dirichlet"} | how), **more
        )


def test_too_few_groups_and_too_many_shards_are_refused():
    how = PartitionParams("column", column="writer")
    with pytest.raises(DataError, match=r"'writer': 2 .*3 workers.*at most 2"):
        partition(np.zeros(9, int), 3, how, 0, columns={"writer": np.arange(9) % 2})
    with pytest.raises(DataError, match=r"9 training samples .*3 workers .*4 .*12"):
        partition(np.zeros(9, int), 3, PartitionParams("shards", shards=4), 0)


def test_phi_one_is_iid_only_when_not_asked_otherwise():
    for phi, choice, scheme in (
        (1.0, "auto", "iid"),
        (7.0, "auto", "iid"),
        (0.99, "auto", "dirichlet"),
        (1.0, "dirichlet", "dirichlet"),
        (0.1, "iid", "iid"),
    ):
        assert scheme_of(PartitionParams(choice, phi=phi)) == scheme
    with pytest.raises(ConfigError, match=r"'autos'.*auto, iid, dirichlet.*'auto'"):
        scheme_of(PartitionParams("autos"))


def test_emd_worked_by_hand():
    # All data: shares 3/4, 1/4. Worker 0: 1, 0 -> 1/2. Worker 1: 1/2, 1/2 -> 1/2.
    assert emd_to_global(np.array([[2, 0], [1, 1]])).tolist() == [0.5, 0.5]


def test_summary_worked_by_hand():
    summary = describe_partition(np.array([[4, 0], [2, 2], [1, 0]]))
    assert (summary.workers, summary.samples) == (3, 9)
    assert (summary.size_min, summary.size_median, summary.size_max) == (1, 4.0, 4)
    assert summary.classes_mean == pytest.approx(4 / 3)
    assert summary.rows()[0] == "9 samples over 3 workers"
