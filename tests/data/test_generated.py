"""Generated text and tables."""

import numpy as np
import pytest

from dystop.data import load, take
from dystop.data.generated.table import GeneratedTable, make_table
from dystop.data.generated.text import ALPHABET, GeneratedText, decode, make_text
from dystop.data.npz import from_arrays
from dystop.errors import DataError

SMALL_TEXT = GeneratedText(train=40, test=12, length=20, sources=4)


def test_text_is_the_same_for_the_same_seed_and_language():
    one, same, other = (make_text(SMALL_TEXT, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.x_train, same.x_train)
    assert not np.array_equal(one.x_train, other.x_train)
    assert one.task == "next-token"
    assert one.tokens == len(ALPHABET)
    assert np.bincount(one.y_train).tolist() == [10] * 4


def test_the_target_of_a_character_is_the_next_one():
    data = make_text(SMALL_TEXT, 0)
    train, _ = data.targets
    assert np.array_equal(data.x_train[:, 1:], train[:, :-1])
    text = decode(np.concatenate([data.x_train[0], train[0, -1:]]))
    assert len(text) == 21
    assert set(text) <= set(ALPHABET)


def test_sources_share_their_words_and_differ_in_favourites():
    texts = [
        make_text(GeneratedText(train=400, test=1, sources=1, first=first, length=50), 0)
        for first in (0, 1)
    ]
    words = [decode(t.x_train.reshape(-1)).split() for t in texts]
    common = set(words[0]) & set(words[1])
    assert len(common) > 60
    rank = [sorted(common, key=lambda w: (-each.count(w), w))[:30] for each in words]
    assert len(set(rank[0]) & set(rank[1])) < 28


def test_a_table_has_classes_and_numbers_of_one_law():
    params = GeneratedTable(train=300, test=100, features=6, classes=3, noise=0.0)
    data = make_table(params, 0)
    assert data.shape == (6,)
    assert data.values == 1
    assert np.array_equal(data.targets[0], make_table(params, 0).targets[0])
    assert not np.array_equal(data.targets[0], make_table(params, 1).targets[0])
    x = np.c_[data.x_train, np.ones(300)]
    found, *_ = np.linalg.lstsq(x, data.targets[0][:, 0], rcond=None)
    test = np.c_[data.x_test, np.ones(100)] @ found
    error = np.square(test - data.targets[1][:, 0]).mean()
    assert 0.02 < error < 0.9  # a linear model explains a part, and not everything


@pytest.mark.parametrize("name", ["generated-text", "generated-table"])
def test_a_subset_keeps_samples_and_targets_together(name):
    whole = load(name)
    some = take(whole, 50, 20, seed=3)
    assert len(some.targets[0]) == len(some.x_train) == 50
    at = next(k for k, x in enumerate(whole.x_train) if np.array_equal(x, some.x_train[7]))
    assert np.array_equal(whole.targets[0][at], some.targets[0][7])


def own(x, y):
    return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4]}


def test_floats_of_ones_own_are_the_targets_of_a_regression(tmp_path):
    rng = np.random.default_rng(0)
    arrays = own(rng.normal(size=(30, 3)), rng.normal(size=30))
    np.savez(tmp_path / "own.npz", **arrays)
    for data in (from_arrays(arrays, "here"), load(str(tmp_path / "own.npz"))):
        assert (data.task, data.values, data.classes) == ("regression", 1, 10)
        assert np.bincount(data.y_train).tolist() == [3] * 10  # ten bins of equal size
        np.testing.assert_allclose(data.targets[0][:, 0], arrays["y_train"], rtol=1e-6)


def test_token_ids_of_ones_own_are_text():
    tokens = np.random.default_rng(0).integers(0, 9, (20, 7)).astype(np.int64)
    follow = from_arrays(own(tokens[:, :-1], tokens[:, 1:]), "here")
    assert (follow.task, follow.tokens, follow.shape) == ("next-token", 9, (6,))
    labelled = from_arrays(own(tokens, np.arange(20) % 3), "here")
    assert (labelled.task, labelled.tokens, labelled.classes) == ("classification", 9, 3)
    with pytest.raises(DataError, match=r"token|below|negative|from 0"):
        from_arrays(own(tokens - 1, np.arange(20) % 3), "here")


def test_targets_that_cannot_be_learned_are_refused():
    x, y = np.zeros((8, 3)), np.arange(8.0)
    y[3] = np.nan
    with pytest.raises(DataError, match=r"target_train holds NaN"):
        from_arrays(own(x, y), "here")
