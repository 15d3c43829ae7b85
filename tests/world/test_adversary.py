"""Who attacks, and what attackers send: by hand, and the same for NumPy arrays and tensors."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from dystop.errors import ConfigError
from dystop.rng import stream
from dystop.world.adversary import (
    Adversary,
    Attack,
    Knowledge,
    attackers,
    flipped_labels,
    noise_of,
    sent_vector,
)

OWN = np.array([3.0, 4.0], np.float32)
KNOWN = Knowledge(
    own=OWN,
    first=np.array([1.0, 1.0], np.float32),
    others=np.array([[0.0, 4.0], [6.0, 4.0]], np.float32),  # mean (3, 4), deviation (3, 0)
    noise=np.array([0.0, 2.0], np.float32),
)
BY_HAND = {
    "none": [3, 4],
    "flip": [-3, -4],
    "noise": [3, 4 + 3 * 5],  # three own norms
    "replay": [1, 1],
    "alie": [3 - 1.5 * 3, 4],
    "ipm": [-1.5, -2],
    "ipm-near": [3 - 3 * 3 / 5, 4 - 3 * 4 / 5],  # 3 towards zero
    "label-flip": [3, 4],
}


@pytest.mark.parametrize("kind", get_args(Attack))
def test_what_is_sent_by_hand(kind):
    np.testing.assert_allclose(sent_vector(Adversary(kind), KNOWN), BY_HAND[kind], rtol=1e-6)


@pytest.mark.parametrize("kind", get_args(Attack))
def test_arrays_and_tensors_give_the_same(kind):
    known = Knowledge(*stream(1, kind).normal(size=(3, 40)).astype(np.float32), noise=None)
    known = replace(known, others=stream(2, kind).normal(size=(5, 40)).astype(np.float32),
                    noise=noise_of(0, 1, 2, 40).astype(np.float32))  # fmt: skip
    tensors = Knowledge(*(torch.from_numpy(getattr(known, name)) for name in vars(known)))
    adversary = Adversary(kind, strength=0.7)
    expected = sent_vector(adversary, known)
    np.testing.assert_allclose(sent_vector(adversary, tensors), expected, rtol=1e-5, atol=1e-6)


def test_a_strength_replaces_the_usual_one():
    np.testing.assert_allclose(sent_vector(Adversary("alie", strength=4), KNOWN), [3 - 12, 4])


def test_who_attacks():
    assert attackers(Adversary(), 15, 0).tolist() == []
    assert attackers(Adversary("flip", workers=(7, 2, 7)), 15, 0).tolist() == [2, 7]
    drawn = [attackers(Adversary("flip", share=0.2), 15, seed).tolist() for seed in range(5)]
    assert all(len(set(some)) == 3 and some == sorted(some) for some in drawn)
    assert len({tuple(some) for some in drawn}) > 1
    assert attackers(Adversary("alie", share=0.2), 15, 3).tolist() == drawn[3]  # of any kind


@pytest.mark.parametrize("workers", [(15,), tuple(range(15))])
def test_workers_that_cannot_attack(workers):
    with pytest.raises(ConfigError, match=r"adversary\.workers"):
        attackers(Adversary("flip", workers=workers), 15, 0)


def test_flipped_labels():
    assert flipped_labels(np.array([0, 3, 9]), 10).tolist() == [9, 6, 0]
