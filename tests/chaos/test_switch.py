"""The switch of the fault tests: order, delay and loss by a seed; a ping through it."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.network import FarNet, check_rtt, leftovers, needs_taps, ping_ms
from chaos.switch import Lines, UnderWay, fate
from dystop.errors import ConfigError

THERE, BACK = ("a", "b"), ("b", "a")


def sent(lines, count, way=THERE, seed=0, gap_s=0.001):
    """Frames sent one after another: when each came out, by its number."""
    under_way = UnderWay(seed)
    under_way.lines = lines
    for k in range(count):
        under_way.take(way, k.to_bytes(4, "big"), k * gap_s)
    came, now_s = [], 0.0
    while (wait_s := under_way.wait_s(now_s)) is not None:
        now_s += wait_s
        came += [(int.from_bytes(frame, "big"), now_s) for _, frame in under_way.due(now_s)]
    return came


def test_without_a_setting_frames_pass_at_once():
    assert sent(Lines(), 3, gap_s=1.0) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_way_takes_half_of_the_round_trip():
    assert sent(Lines(rtt_s=0.2), 2, gap_s=1.0) == [(0, 0.1), (1, 1.1)]


@settings(derandomize=True, deadline=None)
@given(st.floats(0.0, 0.5), st.floats(0.0, 0.1), st.integers(0, 9))
def test_order_is_kept_and_delays_stay_within_bounds(rtt_s, jitter_s, seed):
    came = sent(Lines(rtt_s, jitter_s), 50, seed=seed)
    assert [number for number, _ in came] == list(range(50))
    delays = [at_s - 0.001 * number for number, at_s in came]
    assert min(delays) >= rtt_s / 2 - 1e-9
    assert max(delays) <= rtt_s / 2 + jitter_s + 1e-9


def test_frames_far_apart_have_jitter_of_their_own():
    delays = [at_s - number for number, at_s in sent(Lines(0.1, 0.02), 400, gap_s=1.0)]
    assert min(delays) == pytest.approx(0.05, abs=0.001)
    assert max(delays) == pytest.approx(0.07, abs=0.001)
    assert sum(delays) / len(delays) == pytest.approx(0.06, abs=0.002)


def test_a_shorter_line_does_not_overtake_what_is_under_way():
    under_way = UnderWay()
    under_way.lines = Lines(rtt_s=2.0)
    under_way.take(THERE, b"first", 0.0)
    under_way.lines = Lines()
    under_way.take(THERE, b"second", 0.0)
    under_way.take(BACK, b"other way", 0.0)
    assert under_way.due(0.0) == [(BACK, b"other way")]
    assert [frame for _, frame in under_way.due(1.0)] == [b"first", b"second"]


def test_loss_is_drawn_by_the_number_of_the_frame():
    some = [number for number, _ in sent(Lines(loss=0.05), 4000)]
    assert 4000 - len(some) == pytest.approx(200, abs=45)
    assert some == [k for k in range(4000) if fate(0, THERE, k)[0] >= 0.05]
    assert some == [number for number, _ in sent(Lines(0.2, 0.02, 0.05), 4000)]
    assert set(some) >= {number for number, _ in sent(Lines(loss=0.2), 4000)}
    assert some != [number for number, _ in sent(Lines(loss=0.05), 4000, BACK)]
    assert some != [number for number, _ in sent(Lines(loss=0.05), 4000, seed=1)]


def test_figures_of_the_switch():
    under_way = UnderWay()
    under_way.take(THERE, b"", 1.0)
    under_way.lines = Lines(loss=1.0)
    under_way.take(THERE, b"", 1.0)
    assert under_way.due(1.25) == [(THERE, b"")]
    assert under_way.wait_s(2.0) is None
    assert (under_way.count["taken"], under_way.count["lost"]) == (1, 1)
    assert under_way.late_s == 0.25


def lose_the_switch(net):
    """Give a network a member, and no switch for the next one."""
    with net:
        net.add("a")
        net.process.kill()
        net.add("b")


def test_a_failure_leaves_nothing_behind():
    needs_taps()
    net = FarNet()
    with pytest.raises(ConfigError, match="switch has ended"):
        lose_the_switch(net)
    assert net.process is None
    assert leftovers(net) == []


def test_a_ping_takes_what_was_set_and_a_cut_stops_it():
    needs_taps()
    with FarNet() as net:
        for name in "abc":
            net.add(name)
        net.far(0.05, 0.02)
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
