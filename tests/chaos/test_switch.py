"""The switch of the fault tests: order, delay and loss from a seed; pings through it."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.network import DelayedNetwork, check_rtt, leftovers, needs_taps, ping_ms
from chaos.switch import FrameQueue, LinkSettings, draw_frame
from dystop.errors import ConfigError

THERE, BACK = ("a", "b"), ("b", "a")


def sent(settings, count, way=THERE, seed=0, gap_s=0.001):
    """Return the number and the delivery time of frames that are sent one after another."""
    frames = FrameQueue(seed)
    frames.settings = settings
    for k in range(count):
        frames.take(way, k.to_bytes(4, "big"), k * gap_s)
    delivered, now_s = [], 0.0
    while (wait_s := frames.wait_s(now_s)) is not None:
        now_s += wait_s
        delivered += [(int.from_bytes(frame, "big"), now_s) for _, frame in frames.due(now_s)]
    return delivered


def test_frames_pass_at_once_without_delay():
    assert sent(LinkSettings(), 3, gap_s=1.0) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_direction_takes_half_of_the_round_trip_time():
    assert sent(LinkSettings(rtt_s=0.2), 2, gap_s=1.0) == [(0, 0.1), (1, 1.1)]


@settings(derandomize=True, deadline=None)
@given(st.floats(0.0, 0.5), st.floats(0.0, 0.1), st.integers(0, 9))
def test_order_is_kept_and_delays_stay_within_bounds(rtt_s, jitter_s, seed):
    delivered = sent(LinkSettings(rtt_s, jitter_s), 50, seed=seed)
    assert [number for number, _ in delivered] == list(range(50))
    delays = [at_s - 0.001 * number for number, at_s in delivered]
    assert min(delays) >= rtt_s / 2 - 1e-9
    assert max(delays) <= rtt_s / 2 + jitter_s + 1e-9


def test_each_frame_has_its_own_jitter():
    delays = [at_s - number for number, at_s in sent(LinkSettings(0.1, 0.02), 400, gap_s=1.0)]
    assert min(delays) == pytest.approx(0.05, abs=0.001)
    assert max(delays) == pytest.approx(0.07, abs=0.001)
    assert sum(delays) / len(delays) == pytest.approx(0.06, abs=0.002)


def test_a_shorter_delay_does_not_overtake_queued_frames():
    frames = FrameQueue()
    frames.settings = LinkSettings(rtt_s=2.0)
    frames.take(THERE, b"first", 0.0)
    frames.settings = LinkSettings()
    frames.take(THERE, b"second", 0.0)
    frames.take(BACK, b"other way", 0.0)
    assert frames.due(0.0) == [(BACK, b"other way")]
    assert [frame for _, frame in frames.due(1.0)] == [b"first", b"second"]


def test_loss_is_drawn_by_the_number_of_the_frame():
    some = [number for number, _ in sent(LinkSettings(loss=0.05), 4000)]
    assert 4000 - len(some) == pytest.approx(200, abs=45)
    assert some == [k for k in range(4000) if draw_frame(0, THERE, k)[0] >= 0.05]
    assert some == [number for number, _ in sent(LinkSettings(0.2, 0.02, 0.05), 4000)]
    assert set(some) >= {number for number, _ in sent(LinkSettings(loss=0.2), 4000)}
    assert some != [number for number, _ in sent(LinkSettings(loss=0.05), 4000, BACK)]
    assert some != [number for number, _ in sent(LinkSettings(loss=0.05), 4000, seed=1)]


def test_counts_and_lateness():
    frames = FrameQueue()
    frames.take(THERE, b"", 1.0)
    frames.settings = LinkSettings(loss=1.0)
    frames.take(THERE, b"", 1.0)
    assert frames.due(1.25) == [(THERE, b"")]
    assert frames.wait_s(2.0) is None
    assert (frames.count["taken"], frames.count["lost"]) == (1, 1)
    assert frames.late_s == 0.25


def add_after_killing_the_switch(net):
    """Kill the switch of a network, then add a member."""
    with net:
        net.add("a")
        net.process.kill()
        net.add("b")


def test_a_failed_switch_leaves_no_namespaces():
    needs_taps()
    net = DelayedNetwork()
    with pytest.raises(ConfigError, match=r"switch .*plug"):
        add_after_killing_the_switch(net)
    assert net.process is None
    assert leftovers(net) == []


def test_pings_take_the_set_delay_and_stop_at_a_cut():
    needs_taps()
    with DelayedNetwork() as net:
        for name in "abc":
            net.add(name)
        net.delay(0.05, 0.02)
        found = check_rtt(net, ("a", "b"), 0.05, 0.02)
        assert len(found) == 20
        net.cut("b")
        assert ping_ms(net, "a", "b", 2) == []
        assert len(ping_ms(net, "a", "c", 2)) == 2
        net.heal("b")
        assert len(ping_ms(net, "a", "b", 2)) == 2
        pid = net.process.pid
    assert leftovers(net) == []
    assert not os.path.exists(f"/proc/{pid}")
