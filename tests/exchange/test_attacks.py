"""Who attacks, and what attackers send: by hand, and the same for NumPy arrays and tensors."""

from functools import partial

import numpy as np
import pytest
import torch

from dystop.errors import ConfigError
from dystop.exchange.attacks import (
    ATTACKS,
    Adversary,
    ALittleIsEnough,
    Attackers,
    Flip,
    Knowledge,
    attackers_of,
    flipped_labels,
)
from dystop.rng import stream
from dystop.sparse import ints

OWN = np.array([3.0, 4.0], np.float32)
KNOWN = Knowledge(
    own=OWN,
    first=np.array([1.0, 1.0], np.float32),
    others=np.array([[0.0, 4.0], [6.0, 4.0]], np.float32),  # mean (3, 4), deviation (3, 0)
    noise=lambda: np.array([0.0, 2.0], np.float32),
)
BY_HAND = {
    "flip": [-3, -4],
    "noise": [3, 4 + 3 * 5],  # three own norms
    "replay": [1, 1],
    "alie": [3 - 1.5 * 3, 4],
    "ipm": [-1.5, -2],
    "ipm-near": [3 - 3 * 3 / 5, 4 - 3 * 4 / 5],  # 3 towards zero
    "label-flip": [3, 4],
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_what_is_sent_by_hand(kind):
    np.testing.assert_allclose(ATTACKS[kind]().sent(KNOWN), BY_HAND[kind], rtol=1e-6)


@pytest.mark.parametrize("kind", ATTACKS)
def test_arrays_and_tensors_give_the_same(kind):
    own, first, noise = stream(1, kind).normal(size=(3, 40)).astype(np.float32)
    others = stream(2, kind).normal(size=(5, 40)).astype(np.float32)
    known = Knowledge(own, first, others, lambda: noise)
    tensors = Knowledge(
        *map(torch.from_numpy, (own, first, others)), partial(torch.from_numpy, noise)
    )
    attack = ATTACKS[kind]()
    np.testing.assert_allclose(attack.sent(tensors), attack.sent(known), rtol=1e-5, atol=1e-6)


def test_a_strength_replaces_the_usual_one():
    np.testing.assert_allclose(ALittleIsEnough(strength=4).sent(KNOWN), [3 - 12, 4])
    strong = Adversary("alie", options=ALittleIsEnough(4))
    assert attackers_of(strong, 5, 0).attack == ALittleIsEnough(4)
    assert attackers_of(Adversary("alie"), 5, 0).attack == ALittleIsEnough(1.5)


def nodes_of(kind, count, seed, **who):
    return attackers_of(Adversary(kind, **who), count, seed).nodes.tolist()


def test_who_attacks():
    assert attackers_of(Adversary(), 15, 0) is None
    assert nodes_of("flip", 15, 0, workers=(7, 2, 7)) == [2, 7]
    drawn = [nodes_of("flip", 15, seed, share=0.2) for seed in range(5)]
    assert all(len(set(some)) == 3 and some == sorted(some) for some in drawn)
    assert len({tuple(some) for some in drawn}) > 1
    assert nodes_of("alie", 15, 3, share=0.2) == drawn[3]  # of any kind
    assert Attackers(Flip(), ints([1, 3]), 0).honest(5).tolist() == [0, 2, 4]


@pytest.mark.parametrize("workers", [(15,), tuple(range(15))])
def test_workers_that_cannot_attack(workers):
    with pytest.raises(ConfigError, match=r"adversary\.workers"):
        attackers_of(Adversary("flip", workers=workers), 15, 0)


def test_flipped_labels():
    assert flipped_labels(np.array([0, 3, 9]), 10).tolist() == [9, 6, 0]
