"""An attacking worker: what it learns from its pulls, and what it serves."""

import numpy as np

from dystop.exchange.attacks import ATTACKS, Attackers, LabelFlip
from dystop.testbed.events import Publication, PullFinished, StartPull
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.worker.outgoing import AttackerModels, Outgoing, outgoing_of

FIRST = np.zeros(2, np.float32)
MINE = Publication(version=3, number=1, round=2, vector=np.array([1.0, 2.0], np.float32))


def attacker(kind: str) -> AttackerModels:
    return AttackerModels(Attackers(ATTACKS[kind](), np.array([4, 5]), 0), 4, FIRST)


def pull(attacker: AttackerModels, key: int, node: int, *numbers: float) -> None:
    attacker.learn(StartPull(key, node, f"w{node:02d}", "", PullRequest("run", 1), 9.0))
    header = ModelHeader(version=1, number=0, round=0, size=8, sha256="", schema="", offset=0)
    attacker.learn(PullFinished(key, header, np.array(numbers, np.float32), 8, 0.1))


def test_only_the_vector_changes():
    served = attacker("flip").served(MINE)
    assert (served.version, served.number, served.round) == (3, 1, 2)
    assert served.vector.tolist() == [-1, -2]
    assert served.vector.dtype == np.float32
    assert MINE.vector.tolist() == [1, 2]


def test_it_knows_itself_and_the_newest_models_that_it_pulled():
    spy = attacker("ipm")
    assert spy.served(MINE).vector.tolist() == [-0.5, -1]
    pull(spy, 1, 7, 9, 9)
    pull(spy, 2, 7, 3, 4)  # newer
    assert spy.served(MINE).vector.tolist() == [-1, -1.5]


def test_accomplices_and_masked_models_are_not_taken_for_honest_ones():
    spy = attacker("ipm")
    pull(spy, 1, 5, -9, -9)
    pull(spy, 2, 8, 7)
    assert spy.served(MINE).vector.tolist() == [-0.5, -1]


def test_noise_has_an_address():
    one, two = (attacker("noise").served(MINE).vector for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert np.linalg.norm(one - MINE.vector) > 1


def test_honest_workers_and_those_with_wrong_labels_serve_their_models():
    flips = Attackers(LabelFlip(), np.array([4, 5]), 0)
    for attackers, node in ((None, 4), (flips, 4), (attacker("flip")._attackers, 6)):
        outgoing = outgoing_of(attackers, node, FIRST)
        assert type(outgoing) is Outgoing
        assert outgoing.served(MINE) is MINE
