"""Exclusions grow while a worker fails on trial, and end where they should."""

from dystop.testbed.coordinator.conduct.failures import MAX_EXCLUSION_S, Failures


def test_exclusions_double_up_to_their_maximum_and_are_forgotten_after_the_trial():
    failures, at_s, lengths = Failures(15.0), 0.0, []
    for _ in range(6):
        lengths.append(failures.failed(2, at_s))
        assert failures.is_excluded(2, at_s + lengths[-1] - 0.1)
        at_s += lengths[-1]
        assert not failures.is_excluded(2, at_s)
        assert failures.is_on_trial(2, at_s)
    assert lengths == [15.0, 30.0, 60.0, 120.0, 120.0, 120.0]
    at_s += 10 * MAX_EXCLUSION_S
    assert not failures.is_on_trial(2, at_s)
    assert failures.failed(2, at_s) == 15.0


def test_a_report_ends_the_first_exclusion_only():
    failures = Failures(15.0)
    failures.failed(2, 0.0)
    failures.reported(2, 1.0)
    assert not failures.is_excluded(2, 1.0)
    assert failures.is_on_trial(2, 1.0)
    failures.failed(2, 2.0)
    failures.reported(2, 3.0)
    assert failures.is_excluded(2, 31.0)


def test_a_lost_worker_is_on_trial_without_an_exclusion():
    failures = Failures(15.0)
    failures.put_on_trial(2, 0.0)
    assert not failures.is_excluded(2, 0.0)
    assert failures.is_on_trial(2, 1.0)
    assert not failures.is_on_trial(3, 1.0)
    assert failures.failed(2, 2.0) == 15.0


def test_failures_are_restored_from_the_ledger():
    failures, restored = Failures(15.0), Failures(15.0)
    failures.failed(2, 0.0)
    failures.put_on_trial(3, 0.0)
    restored.restore(failures.to_list())
    assert restored.to_list() == failures.to_list()
    assert restored.is_excluded(2, 14.0)
