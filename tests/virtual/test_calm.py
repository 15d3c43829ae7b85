"""Runs without faults: mechanisms follow their plans, the control state follows the paper."""

import numpy as np
import pytest

from dystop.mechanisms import BUILT_IN, MECHANISMS
from dystop.testbed.ledger.tables import read_blob
from virtual.build import Case, assert_as_planned, findings_of, plans_of, play, run_facts

NO_REFERENCE = {"hadfl"}  # its result depends on when a background model arrives


def assert_all_done(cluster) -> None:
    assert {outcome for _, _, outcome in run_facts(cluster).outcomes} == {"DONE"}
    lines = [entry for process in cluster.nodes for entry in process.log_lines]
    assert not [entry for entry in lines if entry["kind"] in ("rejected", "failed")]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_mechanism_follows_its_plans(name):
    case = Case(MECHANISMS[name](), workers=6, rounds=12)
    cluster = play(case)
    assert cluster.finished == "12 rounds are over"
    assert findings_of(cluster) == []
    assert_all_done(cluster)
    assert [p.record.round for p in cluster.published] == list(range(1, 13))
    if name not in NO_REFERENCE:
        assert_as_planned(case, cluster)


def test_kept_mail_is_used_again():
    case = Case(MECHANISMS["sa-adfl"](mail="latest"), workers=6, rounds=30)
    cluster = play(case)
    assert_all_done(cluster)
    assert_as_planned(case, cluster)
    rows = [len(plan.mixes[0].source) for plan in plans_of(cluster).values()]
    assert set(rows[15:]) == {6}  # by now every worker has mail of all others


def test_a_thousand_rounds_follow_the_equations():
    """S-9: eq:staleness and eq:queue follow from the active sets alone."""
    bound = 2.0
    case = Case(MECHANISMS["dystop"](staleness_bound=bound, neighbours=1), workers=4, rounds=1000)
    cluster = play(case, limit_s=1e6)
    assert_all_done(cluster)
    plans, tau, queue = plans_of(cluster), [0] * 4, [0.0] * 4
    for row in cluster.coordinator.disk.rows("rounds"):
        queue = [max(q + t - bound, 0.0) for q, t in zip(queue, tau, strict=True)]
        active = set(plans[row.round].active.tolist())
        tau = [0 if i in active else t + 1 for i, t in enumerate(tau)]
        control = read_blob(row.books)
        assert control.staleness.tolist() == tau
        np.testing.assert_allclose(control.queue, queue)
    assert control.t == 1001
