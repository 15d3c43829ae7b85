"""Checks of pulled models."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.params import Guards
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.worker.guard import Guard, ModelClaim

WIDTH = 12
PLAIN = Guards()
SCHEMA = Schema((("w", (8,)), ("bn.running_mean", (2,)), ("bn.running_var", (2,))))
OWN = np.linspace(1, 2, WIDTH, dtype=np.float32)


def a_guard(**params) -> Guard:
    guard = Guard(replace(PLAIN, **params), SCHEMA.variances)
    guard.learn(OWN)
    return guard


def claim(version=1, number=0, round=1, node=3) -> ModelClaim:
    return ModelClaim(node, round, version, number)


def changed(at: int, value: float) -> np.ndarray:
    vector = OWN.copy()
    vector[at] = value
    return vector


# Judging ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "code"),
    [
        (OWN, None),
        (OWN * 9, None),
        (changed(0, np.nan), "not_finite"),
        (changed(0, np.inf), "not_finite"),
        (changed(11, -np.inf), "not_finite"),
        (changed(0, 1e38), "norm"),
        (np.full(WIDTH, 3e38, np.float32), "norm"),
        (OWN * 11, "norm"),
        (changed(10, -1e-30), "variance"),
        (changed(11, -1.0), "variance"),
        (changed(9, -1.0), None),  # a mean may be negative
        (changed(11, -0.0), None),
    ],
)
def test_codes(vector, code):
    assert a_guard().judge(claim(), vector, OWN).code == code


def test_the_checks_have_an_order():
    bad = changed(11, -1.0)
    guard = a_guard()
    guard.judge(claim(version=9, round=1), OWN, OWN)
    old = claim(version=1, round=2)
    assert guard.judge(old, changed(11, -np.inf), OWN).code == "not_finite"
    assert guard.judge(old, bad * 100, OWN).code == "norm"
    assert guard.judge(old, bad, OWN).code == "variance"
    assert guard.judge(old, OWN, OWN).code == "replay"


def test_the_norm_limit_follows_the_last_twenty():
    guard = a_guard()
    guard.learn(OWN * 5)
    assert guard.judge(claim(), OWN * 49, OWN).code is None
    for _ in range(20):
        guard.learn(OWN)
    assert guard.judge(claim(), OWN * 49, OWN).code == "norm"
    guard.learn(changed(0, np.inf))  # an own model that is not finite is not counted
    assert guard.judge(claim(), OWN * 49, OWN).code == "norm"


def test_without_a_history_the_own_model_counts():
    guard = Guard(PLAIN)
    assert guard.judge(claim(), OWN * 11, OWN).code == "norm"
    zero = np.zeros(WIDTH, np.float32)  # some models begin with zeros: nothing to compare with
    assert guard.judge(claim(), OWN * 11, zero).code is None
    assert guard.judge(claim(), changed(0, np.nan), zero).code == "not_finite"


def test_distance():
    guard = a_guard(distance_factor=3.0)
    near = [changed(0, OWN[0] + 0.1 * k) for k in (1, 2, 3)]
    far = changed(0, OWN[0] + 5)
    verdict = guard.judge(claim(), near[1], OWN)
    assert verdict.distance == pytest.approx(0.2, rel=1e-5)
    assert guard.judge(claim(), far, OWN).code is None  # too few seen to call it unusual
    for model in near:
        guard.judge(claim(), model, OWN)
    refused = guard.judge(claim(), far, OWN)
    assert refused.code == "distance"
    assert refused.distance == pytest.approx(5, rel=1e-5)
    assert guard.usual_distance == pytest.approx(0.25, rel=0.3)
    for _ in range(20):  # once most models are there, it is no longer unusual
        code = guard.judge(claim(), far, OWN).code
    assert code is None
    assert a_guard().usual_distance is None


def test_replay():
    guard = a_guard()
    cases = [
        (claim(5, 2, round=1), None),
        (claim(5, 2, round=2), None),  # the same again is what a slow peer has
        (claim(4, 2, round=3), "replay"),
        (claim(6, 1, round=3), "replay"),
        (claim(7, 3, round=3), None),
        (claim(6, 2, round=3), None),  # overtaken by another pull of the same round
        (claim(6, 2, round=4), "replay"),
        (claim(1, 0, round=2), None),  # a slow pull for an old round
        (claim(1, 0, round=4, node=4), None),  # another peer
    ]
    for model, code in cases:
        assert guard.judge(model, OWN, OWN).code == code, model
    guard.forget(3)
    assert guard.judge(claim(0, -1, round=5), OWN, OWN).code is None


def test_a_refused_model_does_not_count_as_seen():
    guard = a_guard()
    assert guard.judge(claim(100, 100, round=1), changed(0, np.nan), OWN).code == "not_finite"
    assert guard.judge(claim(1, 1, round=2), OWN, OWN).code is None


def test_updates_are_not_compared_with_models():
    update = np.full(WIDTH, -0.1, np.float32)
    verdict = a_guard(distance_factor=1.0).judge(claim(), update, OWN, "delta")
    assert verdict == (None, None)
    assert a_guard().judge(claim(), update * 1000, OWN, "delta").code == "norm"


def test_masked_models():
    kept = np.zeros(WIDTH, bool)
    kept[[0, 3, 11]] = True
    verdict = a_guard().judge(claim(), OWN[kept] + np.float32(0.5), OWN, "masked", kept)
    assert verdict.code is None
    # 0.5 in each coordinate, scaled up from three to twelve.
    assert verdict.distance == pytest.approx(0.5 * np.sqrt(12), rel=1e-5)
    bad = np.array([1, 1, -1], np.float32)
    assert a_guard().judge(claim(), bad, OWN, "masked", kept).code == "variance"
    fine = np.array([-1, -1, 1], np.float32)
    assert a_guard().judge(claim(), fine, OWN, "masked", kept).code is None
