"""Runs and pulls over a network with delay, jitter, loss and a cut (C-3)."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

import pytest

from dystop.testbed.audit.check import accuracy_near
from dystop.testbed.names import COORDINATOR, OBSERVER
from dystop.testbed.setup.enrolment import node_names
from dystop.testbed.transport.pacing import FIRST_BYTES

from .facts import facts_of
from .network import DelayedNetwork, check_rtt, needs_taps, sent_bytes, wait_until_sent
from .rig import QUICK, Rig, Setting
from .transfer import Pair

pytestmark = pytest.mark.chaos

JITTER_S, RATE_MBIT = 0.02, 20.0
GRID = [(0.05, 1.0), (0.05, 5.0), (0.2, 1.0), (0.2, 5.0)]  # round trip in s, loss in %
BIG = [(0.05, 1.0, 6.0), (0.05, 5.0, 2.0), (0.2, 1.0, 4.0), (0.2, 5.0, 1.0)]  # and megabytes
GLOBAL, LOCAL = 0.010, 0.015  # allowed loss of accuracy
ROUNDS = 60
CUT_S = 5.0
AWAY_S = 12.0  # three times the default, as `Timeouts` recommends for a wide area network
KEYS = (*QUICK, f"stop.rounds={ROUNDS}", "evaluate.every_rounds=3", "testbed.timeouts.gather_s=60")


@dataclass
class DelayedRig(Rig):
    """A rig on the switch; `link` is the round-trip time in seconds and the loss in percent."""

    link: tuple[float, float] = (0.0, 0.0)
    pings_ms: list[float] = field(default_factory=list)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.net = net = stack.enter_context(DelayedNetwork(self.setting.seed))
            for name in (COORDINATOR, OBSERVER, *node_names(self.experiment)):
                net.add(name, RATE_MBIT)
            self.pings_ms = _configure(net, *self.link, ("w00", COORDINATOR))
            super().__enter__()
            stack.push(self._stack.pop_all())  # the rig ends before its network
            self._stack = stack.pop_all()
        return self


def _configure(
    net: DelayedNetwork, rtt_s: float, percent: float, pair: tuple[str, str]
) -> list[float]:
    jitter_s = JITTER_S if rtt_s else 0.0
    net.delay(rtt_s, jitter_s)
    pings_ms = check_rtt(net, pair, rtt_s, jitter_s)
    net.loss(percent)
    return pings_ms


def _run(folder, link):
    """Run to the end over such links; return the figures and a summary of them."""
    with DelayedRig(folder, Setting(KEYS), link=link) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 0, 120)
        began = time.monotonic()
        rig.finish(600)
        wall_s = time.monotonic() - began
        assert rig.findings() == []
        count, pings = rig.net.count(), rig.pings_ms
    facts = facts_of(rig.folder, wall_s)
    lost = count.get("lost", 0)
    return facts, (
        f"pings {pings[0]:.0f} to {pings[-1]:.0f} ms, {lost} of {count['taken'] + lost} frames "
        f"lost; {facts['rounds']} rounds in {wall_s:.0f} s, median/p95/max {facts['round_s']} s, "
        f"{facts['endings']}, {facts['pulls']} pulls, refused "
        f"{facts['refused']}; accuracy {facts['accuracy_global']:.4f} / "
        f"{facts['accuracy_local']:.4f}, switch at most {1e3 * count['late_s']:.0f} ms late"
    )


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Return the result of as many rounds on the same switch without delay and loss."""
    needs_taps()
    return _run(tmp_path_factory.mktemp("near"), (0.0, 0.0))


@pytest.mark.parametrize(("rtt_s", "percent"), GRID)
def test_c3_a_run_with_delay_and_loss(tmp_path, show, control, rtt_s, percent):
    """C-3: all rounds close, the checker finds nothing, the accuracy is as without delay."""
    facts, summary = _run(tmp_path, (rtt_s, percent))
    show(f"{summary}\n    near: {control[1]}")
    assert facts["rounds"] == control[0]["rounds"] == ROUNDS
    near = [("accuracy_global", GLOBAL), ("accuracy_local", LOCAL)]
    assert [f for key, d in near for f in accuracy_near(facts[key], control[0][key], d)] == []


def _cut_in_the_middle(pair, size):
    """Cut the network when a pull is more than half done; return the result of the pull."""
    assert isinstance(pair.net, DelayedNetwork)
    before = sent_bytes(pair.net, "a")
    running = pair.fetch(120.0, AWAY_S)
    wait_until_sent(pair.net, "a", before + 0.6 * size)
    pair.net.cut("a")
    time.sleep(CUT_S)
    pair.net.heal("a")
    result = running()
    return {**result, "sent": sent_bytes(pair.net, "a") - before}


@pytest.mark.parametrize(("rtt_s", "percent", "megabytes"), BIG)
def test_c3_a_cut_in_the_middle_with_delay_and_loss(tmp_path, show, rtt_s, percent, megabytes):
    """C-3: a pull over a slow link resumes where it was cut, and few bytes are sent twice."""
    needs_taps()
    size = int(1e6 * megabytes)
    with DelayedNetwork() as net:
        for name in "ab":
            net.add(name, RATE_MBIT)
        pings = _configure(net, rtt_s, percent, ("a", "b"))
        pair = Pair(tmp_path, megabytes, net)
        with pair.serving():
            cut = _cut_in_the_middle(pair, size)
    twice = max(cut["bytes"], cut["sent"]) - size
    show(
        f"pings {pings[0]:.0f} to {pings[-1]:.0f} ms, {percent:g} % loss, {megabytes:g} MB: "
        f"{cut['seconds']:.1f} s with a cut of {CUT_S:g} s, {cut['resumes']} resumed, {twice} "
        "bytes twice"
    )
    assert cut["code"] == ""
    assert cut["resumes"] >= 1
    assert twice <= cut["resumes"] * (0.05 * size + FIRST_BYTES)  # one chunk on a slow link each
