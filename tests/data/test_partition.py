"""Partitions of a data set over workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.data import (
    describe_partition,
    emd_to_global,
    label_counts,
    partition,
    scheme_for,
    split_counts,
)
from dystop.errors import ConfigError, DataError

CLASSES = 4


@st.composite
def cases(draw):
    min_size = draw(st.integers(1, 3))
    workers = draw(st.integers(1, 12))
    extra = draw(st.lists(st.integers(0, CLASSES - 1), max_size=60))
    labels = [k % CLASSES for k in range(workers * min_size)] + extra
    scheme = draw(st.sampled_from(["iid", "dirichlet"]))
    phi = draw(st.sampled_from([1e-3, 0.1, 0.5, 1.0, 100.0]))
    seed = draw(st.integers(0, 2**32))
    return np.array(labels), workers, {
        "scheme": scheme, "phi": phi, "seed": seed, "min_size": min_size,
    }  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases())
def test_split_covers_all_once_and_leaves_nobody_without(case):
    labels, workers, how = case
    shards = partition(labels, workers, **how)
    assert len(shards) == workers
    assert all(s.dtype == np.int64 and (np.diff(s) > 0).all() for s in shards)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    assert min(len(s) for s in shards) >= how["min_size"]
    if how["scheme"] == "iid":
        assert max(map(len, shards)) - min(map(len, shards)) <= 1


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases())
def test_split_is_deterministic_and_counts_match(case):
    labels, workers, how = case
    shards = partition(labels, workers, **how)
    again = partition(labels.copy(), workers, **how)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    counts = label_counts(labels, shards, CLASSES)
    slow = [[int((labels[s] == k).sum()) for k in range(CLASSES)] for s in shards]
    assert counts.tolist() == slow


@settings(derandomize=True, deadline=None, max_examples=100)
@given(cases())
def test_counts_without_lists_of_samples(case):
    labels, workers, how = case
    how = {key: value for key, value in how.items() if key != "min_size"}
    counts = split_counts(labels, CLASSES, workers, **how)
    assert np.array_equal(counts, label_counts(labels, partition(labels, workers, **how), CLASSES))


def test_seeds_give_different_splits():
    labels = np.arange(200) % 10
    for scheme in ("iid", "dirichlet"):
        a, b = (partition(labels, 5, scheme=scheme, phi=0.5, seed=s) for s in (0, 1))
        assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_class_does_not_disturb_another():
    # The draw for a class is addressed by the class: dropping class 1 leaves class 0 where it was.
    labels = np.repeat([0, 1], 300)
    both = partition(labels, 3, scheme="dirichlet", phi=1.0, seed=5)
    alone = partition(labels[:300], 3, scheme="dirichlet", phi=1.0, seed=5)
    assert all(np.array_equal(b[b < 300], a) for a, b in zip(alone, both, strict=True))


def test_smaller_phi_is_more_skewed():
    labels = np.arange(5000) % 10
    emd, classes = [], []
    for phi in (0.1, 0.4, 0.7, 1.0, 10.0, 1000.0):
        shards = partition(labels, 20, scheme="dirichlet", phi=phi, seed=3)
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
            [len(s) for s in partition(labels, workers, scheme="dirichlet", phi=phi, seed=seed)]
            for seed in range(400)
        ]
    )
    share = sizes / n
    expected = (1 / workers) * (1 - 1 / workers) / (workers * phi + 1)
    np.testing.assert_allclose(share.mean(axis=0), 1 / workers, atol=0.04)
    np.testing.assert_allclose(share.var(), expected, rtol=0.1)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_as_many_workers_as_samples(scheme):
    shards = partition(np.arange(500) % 7, 500, scheme=scheme, phi=0.05, seed=0)
    assert [len(s) for s in shards] == [1] * 500


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_too_few_samples_are_refused(scheme):
    with pytest.raises(DataError, match=r"9 training samples .*5 workers .*2 .*10"):
        partition(np.zeros(9, int), 5, scheme=scheme, phi=1.0, seed=0, min_size=2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scheme": "dirichlett"}, "scheme = 'dirichlett'.*'dirichlet'"),
        ({"phi": 0.0}, r"phi = 0\.0.* 0 "),
        ({"phi": float("nan")}, "phi = nan"),
        ({"workers": 0}, "workers = 0.*>= 1"),
        ({"min_size": 0}, "min_size = 0.*>= 1"),
    ],
)
def test_bad_settings_are_refused(changed, message):
    how = {"workers": 3, "scheme": "dirichlet", "phi": 1.0, "seed": 0} | changed
    with pytest.raises(ConfigError, match=message):
        partition(np.arange(10) % 2, **how)


def test_phi_one_is_iid_only_when_not_asked_otherwise():
    assert scheme_for(1.0, "auto") == scheme_for(7.0, "auto") == "iid"
    assert scheme_for(0.99, "auto") == "dirichlet"
    assert scheme_for(1.0, "dirichlet") == "dirichlet"
    assert scheme_for(0.1, "iid") == "iid"
    with pytest.raises(ConfigError, match=r"'autos'.*auto, iid, dirichlet.*'auto'"):
        scheme_for(1.0, "autos")


def test_emd_worked_by_hand():
    # All data: shares 3/4, 1/4. Worker 0: 1, 0 -> 1/2. Worker 1: 1/2, 1/2 -> 1/2.
    assert emd_to_global(np.array([[2, 0], [1, 1]])).tolist() == [0.5, 0.5]


def test_summary_worked_by_hand():
    summary = describe_partition(np.array([[4, 0], [2, 2], [1, 0]]))
    assert (summary.workers, summary.samples) == (3, 9)
    assert (summary.size_min, summary.size_median, summary.size_max) == (1, 4.0, 4)
    assert summary.classes_mean == pytest.approx(4 / 3)
    assert summary.rows()[0] == "9 samples over 3 workers"
