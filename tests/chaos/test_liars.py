"""Members that lie about time, loss and versions: nobody is stopped, and each of them is named."""

import signal

import pytest

from dystop.folders.run_folder import open_run

from .drill import KEYS, WORKERS, closed_rounds, measure, member_states, named_members
from .rig import Rig, Setting

pytestmark = pytest.mark.chaos

LIAR = "w07"
AT_ONCE_S = 40.0  # from the first lie on
KEPT = 0.5  # of the control's rounds, the time until the liar is excluded included


def test_twelve_orders_answered_with_a_billion_seconds(tmp_path, show):
    """The liar inflates its links, then falls silent with heartbeats; the others go on at once."""
    lied = measure(tmp_path, {LIAR: "over_report"}, "lied", settle_s=0.0, measure_s=AT_ONCE_S)
    control = measure(tmp_path, {LIAR: "burn:0"}, "control", settle_s=0.0, measure_s=AT_ONCE_S)
    made, usual = (round(pace.during * AT_ONCE_S) for pace in (lied, control))
    show(f"{made} rounds in {AT_ONCE_S:g} s, control {usual}; {LIAR} is {lied.states[LIAR]}")
    assert lied.states[LIAR] == "QUARANTINED"
    assert all(LIAR in names for names in lied.named.values())
    assert {n for n, s in lied.states.items() if s == "QUARANTINED"} == {LIAR}
    assert made >= KEPT * usual


@pytest.mark.parametrize("attack", ["renumber", "renumber:fair", "huge_version"])
def test_a_liar_about_versions_is_excluded_and_its_accusers_are_not_disarmed(
    tmp_path, show, attack
):
    with Rig(tmp_path, Setting(KEYS, hostile={LIAR: attack}, restart_s=1.0)) as rig:
        rig.start()
        rig.until(lambda: closed_rounds(rig) > 20 and rig.joined == WORKERS, 180)
        rig.supervisor.signal(LIAR, signal.SIGUSR1)
        took_s = rig.until(lambda: member_states(rig)[LIAR] == "QUARANTINED", 120)
        before = closed_rounds(rig)
        rig.until(lambda: closed_rounds(rig) > before + 20, 60)
        states, named = member_states(rig), named_members(rig)
        log = (rig.folder / "logs" / "coordinator.log").read_text(errors="replace")
    show(f"{attack}: excluded after {took_s:.1f} s; {dict(states)}")
    assert {n for n, s in states.items() if s == "QUARANTINED"} == {LIAR}
    assert all(LIAR in names for names in named.values())
    assert "refuted" not in log


@pytest.mark.parametrize("observed", [True, False])
def test_a_false_loss_ends_no_run(tmp_path, show, observed):
    """With an observer its loss counts; without one the median of what the workers report."""
    keys = (*KEYS, "stop.loss=1e-9", f"testbed.observer={str(observed).lower()}")
    with Rig(tmp_path, Setting(keys, hostile={LIAR: "low_loss"}, restart_s=1.0)) as rig:
        rig.start()
        rig.until(lambda: closed_rounds(rig) > 20 and rig.joined == WORKERS, 180)
        rig.supervisor.signal(LIAR, signal.SIGUSR1)
        rig.until(lambda: member_states(rig)[LIAR] == "QUARANTINED", 120)
        before = closed_rounds(rig)
        rig.until(lambda: closed_rounds(rig) > before + 60, 120)
        assert not rig.over
        states, named = member_states(rig), named_members(rig)
        rig.stop()
        losses = [r.loss for r in open_run(rig.folder).records if r.loss is not None]
    show(f"{len(losses)} losses, the least {min(losses):.3g}; {dict(states)}")
    assert {n for n, s in states.items() if s == "QUARANTINED"} == {LIAR}
    assert all(LIAR in names for names in named.values())
    assert min(losses) >= 0.0
