"""Slow, lossy, cut, partitioned and one-way networks (C-1, C-2, C-3, C-6, C-7, C-9)."""

import json
import signal
import time
from statistics import mean, median

import pytest

from dystop.rng import stream
from dystop.testbed.coordinator.conduct.misbehaviour import STRIKE_CODES
from dystop.testbed.names import COORDINATOR
from dystop.testbed.transport.interface import CHUNK_BYTES

from .facts import facts_of
from .network import Partition, needs_namespaces, sent_bytes, wait_until_sent
from .rig import QUICK, Rig, Setting
from .transfer import two_peers

pytestmark = pytest.mark.chaos

LONG = (*QUICK, "stop.rounds=100000", "testbed.observer=false")
BIGGER = ("model.name=mlp", "data.options.shape=[1,28,28]")  # 800 kB


@pytest.mark.parametrize("rate_mbit", [5.0, 20.0, 100.0])
def test_c1_the_rate_is_used(tmp_path, show, rate_mbit):
    """C-1: a model arrives at 90 % of the set rate or more, in spite of TLS."""
    needs_namespaces()
    megabytes = max(4.0, rate_mbit / 2)
    with two_peers(tmp_path, megabytes, rate_mbit) as pair:
        tries = [pair.fetch()() for _ in range(2)]
    best = max(8e-6 * t["bytes"] / t["seconds"] for t in tries)
    show(f"{megabytes:g} MB at {rate_mbit:g} Mbit/s: {best:.2f} Mbit/s, {best / rate_mbit:.1%}")
    assert all(t["code"] == "" for t in tries)
    assert best >= 0.9 * rate_mbit


@pytest.mark.parametrize("estimate", ["kth", "last"])
def test_c2_one_worker_at_a_tenth_of_its_rate(tmp_path, show, estimate):
    """C-2: the estimates follow, every order is executed in time, and no strike is recorded.

    A worker that is paired with the slow one has to wait. How often that happens depends on the
    mechanism (tests/mechanisms/test_slow_link.py), so the test only prints the duration of rounds.
    """
    needs_namespaces()
    keys = (*LONG, *BIGGER, "fleet.workers=6", "mechanism.neighbours=2")
    keys = (*keys, f"mechanism.estimate={estimate}")
    with Rig(tmp_path, Setting(keys, [20.0] * 6)) as rig:
        assert rig.net is not None
        rig.start()
        rig.until(lambda: rig.rounds > 20, 120)
        before = len(rig.records)
        rig.net.shape("w02", 2.0)
        rig.until(lambda: len(rig.records) > before + 25, 240)
        rig.stop()
        assert rig.findings() == []
        orders = facts_of(rig.folder, 0.0)
    usual = median(r.duration_s for r in rig.records[5:before])
    after = [r.duration_s for r in rig.records[before:]]
    before_s, after_s = _expected_s(rig.folder / "trace.jsonl", 2, before)
    show(
        f"round {usual:.2f} s before, then median {median(after):.2f}, mean {mean(after):.2f}, "
        f"max {max(after):.2f} s; "
        f"models of the slow one expected to take {before_s:.2f} s before, {after_s:.2f} s after; "
        f"{orders['endings']}, refused {orders['refused']}"
    )
    assert set(orders["endings"]) == {"DONE"}
    assert not STRIKE_CODES & set(orders["refused"])
    assert estimate == "last" or after_s > 2 * before_s  # with "last" few links are used again


def _expected_s(trace, node, at):
    """Return the median expected seconds of models from a node, in a round and at the end."""
    whole, found = {}, []
    for line in trace.read_text().splitlines():
        whole |= json.loads(line)
        links = zip(*whole["reach"].values(), whole["link_s"], strict=True)
        found.append([s for dst, src, s in links if src == node])
    return median(found[at - 1]), median(found[-1] or found[-2])


@pytest.mark.parametrize("percent", [1.0, 5.0])
def test_c3_loss_and_a_cut_in_the_middle(tmp_path, show, percent):
    """C-3: a pull resumes where it was cut, and few bytes are sent twice."""
    needs_namespaces()
    megabytes = 6.0 if percent < 2 else 3.0
    with two_peers(tmp_path, megabytes, 20.0) as pair:
        assert pair.net is not None
        pair.net.loss(percent)
        whole = pair.fetch()()
        before = sent_bytes(pair.net, "a")
        running = pair.fetch(90.0)
        wait_until_sent(pair.net, "a", before + 0.4 * whole["bytes"])
        pair.net.cut("a")
        time.sleep(5.0)
        pair.net.heal("a")
        cut = running()
    extra = cut["bytes"] - whole["bytes"]
    show(
        f"{percent:g} % loss: {8e-6 * whole['bytes'] / whole['seconds']:.1f} Mbit/s; cut for 5 s: "
        f"{cut['resumes']} resumed, {cut['seconds']:.1f} s instead of {whole['seconds']:.1f}, "
        f"{extra} bytes twice"
    )
    assert whole["code"] == cut["code"] == ""
    assert cut["resumes"] >= 1
    assert extra <= 0.05 * whole["bytes"] + CHUNK_BYTES


def test_c6_a_partition_that_heals(tmp_path, show):
    """C-6: the majority continues; after 20 s apart the minority is back within 5 s."""
    needs_namespaces()
    with Rig(tmp_path, Setting((*LONG, "fleet.workers=6"), [50.0] * 6)) as rig:
        assert rig.net is not None
        rig.start()
        rig.until(lambda: rig.rounds > 10 and rig.joined == 6, 120)
        partition = Partition(rig.net, ["w04", "w05"])
        partition.split()
        rig.log_event("split")
        rig.spend(6.0)  # until all have noticed
        began, before = time.monotonic(), rig.rounds
        rig.spend(14.0)
        apart = (rig.rounds - before) / (time.monotonic() - began)
        assert rig.joined == 4
        partition.heal()
        rig.log_event("healed")
        back_s = rig.until(lambda: rig.joined == 6, 30)
        began, before = time.monotonic(), rig.rounds
        rig.spend(10.0)
        whole = (rig.rounds - before) / (time.monotonic() - began)
        rig.stop()
        assert rig.findings() == []
    show(f"{apart:.1f} rounds/s apart, {whole:.1f} together; back after {back_s:.1f} s")
    assert apart > 0
    assert back_s <= 5.0


@pytest.mark.parametrize("other", [COORDINATOR, "w00"])
def test_c7_a_one_way_link(tmp_path, show, other):
    """C-7: a worker cannot send to another process, but receives from it: no session hangs."""
    needs_namespaces()
    with Rig(tmp_path, Setting(LONG, [50.0] * 4)) as rig:
        assert rig.net is not None
        rig.start()
        rig.until(lambda: rig.rounds > 5 and rig.joined == 4, 120)
        rig.net.block("w03", to=other)
        rig.log_event("block", name="w03", to=other)
        noticed_s = rig.until(lambda: rig.joined == 3, 30) if other == COORDINATOR else 0.0
        rig.spend(8.0)
        before = rig.rounds
        rig.spend(8.0)
        pace = (rig.rounds - before) / 8.0
        rig.net.unblock("w03")
        back_s = rig.until(lambda: rig.joined == 4, 30)
        before = rig.rounds
        rig.until(lambda: rig.rounds > before + 10, 60)
        rig.stop()
        assert rig.findings() == []
    show(
        f"noticed after {noticed_s:.1f} s, {pace:.1f} rounds/s meanwhile, back after {back_s:.1f} s"
    )
    assert noticed_s <= 8.0
    assert pace > 0.2


def test_c9_churn(tmp_path, show):
    """C-9: workers stop or are killed, and come back, for a minute."""
    keys = (*LONG, "fleet.workers=8", "testbed.quorum=0.5")
    rng, left, alive = stream(9, "churn"), 0, set()
    with Rig(tmp_path, Setting(keys, restart_s=3.0)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 5 and rig.joined >= 6, 120)
        before = rig.rounds
        for _ in range(30):
            here = [name for name in rig.names if rig.supervisor.pid(name)]
            if len(here) > 4:
                name = here[int(rng.integers(len(here)))]
                how = signal.SIGINT if rng.random() < 0.5 else signal.SIGKILL
                rig.supervisor.signal(name, how)
                rig.log_event("leave", name=name, how=how.name)
                left += 1
            rig.spend(2.0)
            alive |= {record.alive for record in rig.records[-20:]}
        rig.until(lambda: rig.joined == 8, 90)
        rig.stop()
        assert rig.findings() == []
    show(f"{left} departures, {rig.rounds - before} rounds with {min(alive)} to {max(alive)} alive")
    assert left >= 15
