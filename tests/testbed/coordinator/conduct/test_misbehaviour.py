"""Strikes: when the refusals of receivers are a suspicion, and which of them count."""

from dystop.testbed.coordinator.conduct.misbehaviour import MAX_STRIKES, Strikes
from dystop.testbed.params import Guards


def test_three_strikes_of_two_reporters():
    strikes = Strikes(Guards(), 10)
    assert strikes.model_refused(1, 9, "not_finite", 0.0) == "strike"
    assert strikes.model_refused(2, 9, "norm", 1.0) == "strike"
    assert strikes.model_refused(1, 9, "digest", 2.0) == "suspicion"


def test_false_refusals_of_one_worker_have_no_effect_b7():
    strikes = Strikes(Guards(), 10)
    assert {strikes.model_refused(1, 9, "not_finite", float(k)) for k in range(100)} == {"strike"}
    assert len(strikes.all()) <= MAX_STRIKES


def test_one_reporter_cannot_displace_the_strikes_of_others():
    strikes = Strikes(Guards(strikes=3, reporters=2, window_s=1e9), 10)
    strikes.model_refused(2, 9, "norm", 0.0)
    for k in range(10 * MAX_STRIKES):
        strikes.model_refused(1, 9, "norm", 1.0 + k)
    assert {s.reporter for s in strikes.all()} == {1, 2}


def test_what_the_observer_cannot_check_is_no_strike():
    strikes = Strikes(Guards(), 10)
    lost = ("unreachable", "timeout", "busy", "no_model", "not_authorised", "wrong_run")
    for code in (*lost, "distance", "replay"):
        assert strikes.model_refused(1, 9, code, 0.0) == ""
    assert strikes.all() == []


def test_a_false_claim_to_the_coordinator_needs_no_second_reporter():
    strikes = Strikes(Guards(window_s=10.0), 10)
    assert [strikes.false_claim(9, at_s) for at_s in (0.0, 9.0, 18.0)] == ["strike"] * 3
    assert Strikes(Guards(window_s=10.0), 10, strikes.all()).false_claim(9, 18.5) == "quarantine"


def test_false_claims_and_refused_models_count_separately():
    strikes = Strikes(Guards(), 10)
    assert {strikes.model_refused(1, 9, "norm", float(k)) for k in range(5)} == {"strike"}
    assert strikes.false_claim(9, 5.0) == "strike"
    assert strikes.model_refused(1, 9, "norm", 6.0) == "strike"
    strikes.clear(9)
    assert strikes.all() == []


def test_strikes_expire_and_survive_a_restart():
    strikes = Strikes(Guards(window_s=10.0), 10)
    strikes.model_refused(1, 9, "norm", 0.0)
    strikes.model_refused(2, 9, "norm", 1.0)
    again = Strikes(Guards(window_s=10.0), 10, strikes.all())
    assert strikes.model_refused(1, 9, "norm", 10.5) == "strike"  # the first is too old
    assert again.model_refused(3, 9, "norm", 9.0) == "suspicion"


def test_a_reporter_that_accuses_more_than_half_does_not_count():
    strikes = Strikes(Guards(strikes=3, reporters=2), nodes=8)
    for accused in (2, 3, 4):
        assert strikes.model_refused(0, accused, "norm", 0.0) == "strike"
    assert strikes.is_credible(0, 0.0)
    strikes.model_refused(0, 5, "norm", 0.0)
    assert not strikes.is_credible(0, 0.0)
    assert strikes.model_refused(1, 2, "norm", 1.0) == "strike"
    assert strikes.model_refused(1, 2, "norm", 1.0) == "strike"
    assert strikes.model_refused(6, 2, "norm", 1.0) == "suspicion"  # without the strikes of 0
    assert strikes.is_credible(0, 700.0)


def test_a_refuted_reporter_loses_its_weight_for_the_window():
    strikes = Strikes(Guards(strikes=2, reporters=1, window_s=10.0), nodes=8)
    strikes.model_refused(0, 2, "norm", 0.0)
    strikes.refuted(0, 2, 0.0)
    assert strikes.all() == []
    assert strikes.model_refused(0, 2, "norm", 1.0) == "strike"
    assert strikes.model_refused(0, 2, "norm", 1.0) == "suspicion"
    strikes.refuted(0, 2, 1.0)
    again = Strikes(Guards(strikes=2, reporters=1, window_s=10.0), 8, (), strikes.all_refuted())
    for known in (strikes, again):
        assert [known.model_refused(0, 3, "norm", 2.0) for _ in range(3)] == ["strike"] * 3
        assert known.is_credible(0, 12.0)
