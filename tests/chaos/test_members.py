"""One hostile or hung member of eight: the others keep their pace, and the member is named."""

import os
from pathlib import Path

import pytest

from .attacks import ATTACKS
from .drill import CONTROL_SETTLE_S, Pace, measure

pytestmark = pytest.mark.chaos

HOSTILE = "w07"
KEPT = 0.8  # of the control's rounds per second
FLOOD_KEPT = 0.5  # under a flood on few cores: to refuse a call takes processor time as well
FEW_CORES = 8
FREE = ("testbed.devices=free",)  # rounds as fast as the processors allow
FLOODS = {"large_reports", "padded_reports", "pull_loop"}


def compare(
    tmp_path: Path,
    attack: str,
    show,
    members: tuple[str, ...] = (HOSTILE,),
    keys: tuple[str, ...] = (),
) -> Pace:
    """Measure an attack and its control; check the pace, the members and the checker."""
    attacked = measure(tmp_path, dict.fromkeys(members, attack), "attacked", keys)
    burn = f"burn:{attacked.cpu / len(members):.3f}"
    control = measure(tmp_path, dict.fromkeys(members, burn), "control", keys, CONTROL_SETTLE_S)
    ratio = attacked.during / max(control.during, 1e-9)
    show(f"{attacked}; control {control}; ratio {ratio:.2f}; coordinator {attacked.rss_mib:.0f} "
         f"MiB, restarted {attacked.restarts} times; {dict(attacked.states)}")  # fmt: skip
    honest = {n: s for n, s in attacked.states.items() if n not in members}
    assert set(honest.values()) == {"JOINED"}
    assert attacked.restarts == 0
    nodes = tuple(f"node {int(name[1:])} " for name in members)  # may use what they like
    assert [f for f in attacked.findings if not f.text.startswith((*members, *nodes))] == []
    is_scarce = attack in FLOODS and (os.cpu_count() or 1) < FEW_CORES
    assert ratio >= (FLOOD_KEPT if is_scarce else KEPT)
    for where, names in attacked.named.items():
        assert set(members) <= names, f"not named in the {where}"
    return attacked


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - {"accuse", "burn"}))
def test_one_hostile_member(tmp_path, show, attack):
    """One member of eight attacks; floods are tried with rounds as fast as possible."""
    compare(tmp_path, attack, show, keys=FREE if attack in FLOODS else ())


def test_two_colluding_accusers(tmp_path, show):
    """Two members of eight report every model as refused."""
    compare(tmp_path, "accuse", show, ("w06", "w07"))
