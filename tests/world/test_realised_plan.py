"""Which links find their sender training, and so read its last finished model."""

import numpy as np
import pytest

from dystop.plan import Plan, links, no_links
from dystop.sparse import ints
from dystop.world.progress import Progress, nothing_in_flight
from dystop.world.realised_plan import sender_trains

PROGRESS = Progress(np.zeros(3), np.array([1.0, 4.0, 9.0]), nothing_in_flight())


@pytest.mark.parametrize(
    ("begin_s", "late"), [(3.9, True), (4.0, False), (4.0 - 1e-12, False), (4.1, False)]
)
def test_a_training_that_has_just_ended_is_over(begin_s, late):
    pull = Plan(ints([0]), links(ints([0]), ints([1])))
    assert sender_trains(pull, PROGRESS, np.array([begin_s])).tolist() == [late]


def test_who_waits_for_an_active_sender_reads_the_new_model():
    """Node 1 trains on when the transfers begin; it is active in all plans but the first."""
    begin_s, ends = np.array([2.0]), (ints([0]), ints([1]))
    both = ints([0, 1])
    for plan, late in [
        (Plan(ints([0]), links(*ends, pushed=True)), True),
        (Plan(both, links(*ends)), True),
        (Plan(both, links(*ends, pushed=True)), False),
        (Plan(both, links(*ends, stage=1)), False),
        (Plan(both, links(*ends), synchronous=True), False),
    ]:
        assert sender_trains(plan, PROGRESS, begin_s).tolist() == [late]
    assert sender_trains(Plan(both, no_links()), PROGRESS, np.zeros(0)).tolist() == []
