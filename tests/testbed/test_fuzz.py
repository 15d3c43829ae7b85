"""No sequence of messages from members with valid certificates ends a state machine."""

from support.testbed.fuzzing import run_sequences


def test_random_sequences_end_no_machine():
    accepted = run_sequences(0, 120)
    assert min(accepted.values()) > 500  # most messages pass the codec
