"""Crops and flips against a slow twin, and the addresses of their random numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dystop.errors import ConfigError
from dystop.rng import bits, fold_in
from dystop.training.backends import sequential, stacked
from dystop.training.local_steps.augmentation import Augmentation, augmentation_of
from dystop.training.params import AugmentParams, TrainerParams
from dystop.training.randomness import seed_generators
from dystop.training.samples import Arrays
from dystop.training.trainer import Trainer
from support.training_fixtures import CPU, assert_same, job_of, problem_of

BOTH = Augmentation(AugmentParams(crop=2, flip=True))


def padded_and_cut(image, y, x, flip, crop):
    """Pad one image [C, H, W] with zeros, cut it at (y, x), mirror it."""
    wide = np.pad(image, ((0, 0), (crop, crop), (crop, crop)))
    cut = wide[:, y : y + image.shape[1], x : x + image.shape[2]]
    return cut[:, :, ::-1] if flip else cut


@settings(max_examples=30)
@given(st.integers(0, 4), st.booleans(), st.integers(1, 3), st.integers(0, 2**40))
def test_images_are_cut_and_mirrored(crop, flip, channels, address):
    one = Augmentation(AugmentParams(crop=crop, flip=flip))
    images = torch.arange(5 * channels * 7 * 6, dtype=torch.uint8).view(5, channels, 7, 6)
    moves = one.moves(torch.tensor(address), 5)
    want = [
        padded_and_cut(i.numpy(), *m, crop) for i, m in zip(images, moves.tolist(), strict=True)
    ]
    assert np.array_equal(one.moved(images, moves).numpy(), np.stack(want))
    assert moves.dtype == torch.int64
    assert moves[:, :2].max() <= 2 * crop
    assert moves[:, 2].max() <= flip


def test_every_move_has_an_address_and_all_occur():
    address = torch.from_numpy(bits(3, "dropout", np.arange(40), 5).astype(np.int64))
    moves = BOTH.moves(address, 30)
    words = fold_in(fold_in(bits(3, "dropout", 7, 5), 2**32), np.arange(30))
    mask = np.uint64(2**20 - 1)
    want = [(words >> np.uint64(s) & mask) * np.uint64(n) >> np.uint64(20)
            for s, n in ((0, 5), (20, 5), (40, 2))]  # fmt: skip
    assert np.array_equal(moves[7].numpy(), np.stack(want, -1).astype(np.int64))
    counts = np.bincount((moves[..., 0] * 10 + moves[..., 1] * 2 + moves[..., 2]).flatten())
    assert len(counts) == 50
    assert counts.min() > 5


def net():
    with seed_generators(CPU, 0, "test"):
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("backend", [sequential, stacked])
def test_a_row_is_moved_alike_whatever_trains_beside_it(backend):
    problem = replace(problem_of(net(), [9, 4, 11]), augmentation=BOTH)
    job = job_of(problem, [0, 1, 2], [4, 3, 6])
    alone = [sequential.train(problem, job.rows(np.array([row]))) for row in range(3)]
    all_ = backend.train(problem, job)
    want = torch.cat([one.models for one in alone])
    torch.testing.assert_close(all_.models, want, rtol=1e-4, atol=1e-5)
    assert_same(sequential.train(problem, job_of(problem, [0, 1, 2], [4, 3, 6])), all_)


def test_evaluations_are_not_moved():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (50, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 50)
    data, how = Arrays(x, y, x, y, 0.5, 0.25), TrainerParams(batch=8, device="cpu", lanes=1)
    moved = replace(how, augment=BOTH.params)
    scores = []
    for params in (how, moved):
        t = Trainer(net(), data, [np.arange(50)], params, 3)
        models, counters = (part[None] for part in t.initial())
        scores.append(t.evaluate(models, counters).loss[0])
    np.testing.assert_allclose(*scores, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "crop", "why"),
    [
        ((12,), torch.float32, 1, "has the shape \\[12\\]"),
        ((1, 1, 30), torch.float32, 1, "moves images"),
        ((4, 8, 8), torch.int64, 1, "moves images"),
        ((1, 8, 6), torch.float32, 6, "at most 5"),
    ],
)
def test_samples_that_are_no_images_are_refused(shape, dtype, crop, why):
    with pytest.raises(ConfigError, match=why):
        augmentation_of(AugmentParams(crop=crop), shape, dtype)
    assert not augmentation_of(AugmentParams(), shape, dtype).is_on
