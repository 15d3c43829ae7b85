"""The long fuzz of both state machines; `python -m support.testbed.fuzzing` runs more."""

import pytest

from support.testbed.fuzzing import run_sequences

pytestmark = pytest.mark.chaos


def test_many_random_sequences_end_no_machine():
    run_sequences(1_000_000, 5_000)
