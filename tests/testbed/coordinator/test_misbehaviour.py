"""Strikes: several receivers can exclude a sender, one cannot."""

from dystop.testbed.coordinator.misbehaviour import MAX_STRIKES, Strikes
from dystop.testbed.params import Guards


def test_three_strikes_of_two_reporters():
    strikes = Strikes(Guards())
    assert strikes.model_refused(1, 9, "not_finite", 0.0) == "strike"
    assert strikes.model_refused(2, 9, "norm", 1.0) == "strike"
    assert strikes.model_refused(1, 9, "digest", 2.0) == "quarantine"


def test_slander_by_one_worker_has_no_effect_b7():
    strikes = Strikes(Guards())
    assert {strikes.model_refused(1, 9, "not_finite", float(k)) for k in range(100)} == {"strike"}
    assert len(strikes.all()) <= MAX_STRIKES


def test_a_slanderer_cannot_push_the_strikes_of_others_out():
    strikes = Strikes(Guards(strikes=3, reporters=2, window_s=1e9))
    strikes.model_refused(2, 9, "norm", 0.0)
    for k in range(10 * MAX_STRIKES):
        strikes.model_refused(1, 9, "norm", 1.0 + k)
    assert {s.reporter for s in strikes.all()} == {1, 2}


def test_what_is_nobodys_fault_is_no_strike():
    strikes = Strikes(Guards())
    for code in ("unreachable", "timeout", "busy", "no_model", "not_authorised", "wrong_run"):
        assert strikes.model_refused(1, 9, code, 0.0) == ""
    assert strikes.all() == []


def test_a_lie_to_the_coordinator_needs_no_second_witness():
    strikes = Strikes(Guards(window_s=10.0))
    assert [strikes.false_claim(9, at_s) for at_s in (0.0, 9.0, 18.0)] == ["strike"] * 3
    assert Strikes(Guards(window_s=10.0), strikes.all()).false_claim(9, 18.5) == "quarantine"


def test_lies_and_refused_models_are_counted_apart():
    strikes = Strikes(Guards())
    assert {strikes.model_refused(1, 9, "norm", float(k)) for k in range(5)} == {"strike"}
    assert strikes.false_claim(9, 5.0) == "strike"
    assert strikes.model_refused(1, 9, "norm", 6.0) == "strike"
    strikes.clear(9)
    assert strikes.all() == []


def test_strikes_expire_and_survive_a_restart():
    strikes = Strikes(Guards(window_s=10.0))
    strikes.model_refused(1, 9, "norm", 0.0)
    strikes.model_refused(2, 9, "norm", 1.0)
    again = Strikes(Guards(window_s=10.0), strikes.all())
    assert strikes.model_refused(1, 9, "norm", 10.5) == "strike"  # the first is too old
    assert again.model_refused(3, 9, "norm", 9.0) == "quarantine"
