"""Records appear as rounds close, whatever happens to the observer."""

import pytest

from dystop.folders.run_folder import open_run
from dystop.testbed.names import OBSERVER

from .rig import QUICK, Rig, Setting

pytestmark = pytest.mark.chaos

KEYS = (
    *QUICK, "fleet.workers=6", "testbed.devices=free", "stop.rounds=1000000",
    "evaluate.every_rounds=5",
)  # fmt: skip
WAIT_S = 30.0
SLACK_S = 5.0  # for polling, on a busy machine


def figures(rig):
    records = open_run(rig.folder).records
    due = [r for r in records if r.round % 5 == 0]
    missing = {}
    for record in due:
        if record.no_score:
            missing[record.no_score] = missing.get(record.no_score, 0) + 1
    scored = [r for r in due if r.accuracy is not None]
    text = (
        f"{rig.rounds} rounds, longest lag of a record {rig.lag.longest_s:.1f} s (round "
        f"{rig.lag.longest_round}), {len(scored)} of {len(due)} due rounds scored, the last is "
        f"round {scored[-1].round}, no score: {missing}"
    )
    return scored, text


def test_records_appear_while_the_observer_is_killed(tmp_path, show):
    """The observer is killed 16 times, every 5 s; its tests of gone rounds hold nothing up."""
    with Rig(tmp_path, Setting(KEYS, restart_s=0.5)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 20, 180)
        for _ in range(16):
            rig.spend(5.0)
            rig.kill(OBSERVER)
        killed_in = rig.rounds
        rig.until(lambda: any(r.accuracy is not None for r in rig.records[killed_in:]), 60)
        rig.stop()
        scored, text = figures(rig)
        show(text)
        assert rig.findings() == []
        assert rig.lag.longest_s < WAIT_S + SLACK_S
        assert scored[-1].round > 0.8 * rig.rounds


def test_records_appear_while_the_observer_hangs(tmp_path, show):
    """The observer's evaluation never ends; every record leaves without a score."""
    with Rig(tmp_path, Setting(KEYS)) as rig:
        rig.supervisor.armed[OBSERVER] = ["observer.before_evaluate:hang@4"]
        rig.start()
        rig.until(lambda: rig.rounds > 20, 180)
        rig.until(lambda: any(r.no_score == "late" for r in rig.records), 120)
        before = rig.rounds
        rig.until(lambda: rig.rounds > before + 50, 60)  # nothing waits any longer
        rig.stop()
        _, text = figures(rig)
        show(text)
        assert rig.findings() == []
        assert rig.lag.longest_s < WAIT_S + SLACK_S


def test_a_round_whose_models_are_gone_is_not_testable(tmp_path, show):
    """The observer asks for models 4 s too late; that round has no score, a later one has."""
    with Rig(tmp_path, Setting(KEYS)) as rig:
        rig.supervisor.armed[OBSERVER] = ["observer.before_evaluate:delay:4@3"]
        rig.start()
        rig.until(lambda: any(r.no_score == "not testable" for r in rig.records), 240)
        gone = rig.records[-1].round
        rig.until(lambda: any(r.accuracy is not None for r in rig.records[gone:]), 60)
        rig.stop()
        _, text = figures(rig)
        show(text)
        assert rig.findings() == []
