"""Sending at a set rate."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.testbed.protocol.pulls import ModelHeader
from dystop.testbed.transport.interface import CHUNK_BYTES, ServedModel
from dystop.testbed.transport.pacing import TokenBucket, chunk_size, paced


class FakeTime:
    """A clock that only sleeping moves; sleeps last a little too long, as real ones do."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    rate=st.floats(1e4, 1e8),
    late_s=st.floats(0.0, 0.01),
    size=st.integers(1_000, 100_000),
)
def test_the_rate_is_kept_over_a_second(rate, late_s, size):
    fake = FakeTime(late_s)
    bucket = TokenBucket(rate, None, fake.clock, fake.sleep)
    sent = 0
    while fake.now_s < 101.0:
        step = min(size, int(rate * 0.05))
        bucket.take(step)
        sent += step
    seconds = fake.now_s - 100.0
    assert sent / seconds == pytest.approx(rate, rel=0.03)


def test_an_idle_bucket_does_not_save_up_more_than_its_burst():
    fake = FakeTime()
    bucket = TokenBucket(1000.0, 200.0, fake.clock, fake.sleep)
    fake.now_s += 60.0
    assert bucket.reserve(200) == 0.0
    assert bucket.reserve(100) == pytest.approx(0.1)


def test_a_bucket_may_start_full():
    fake = FakeTime()
    bucket = TokenBucket(20.0, 100.0, fake.clock, fake.sleep, full=True)
    assert [bucket.reserve(1) for _ in range(100)][-1] == pytest.approx(0.0, abs=1e-9)
    assert bucket.reserve(1) == pytest.approx(0.05)


def test_threads_share_a_bucket():
    bucket = TokenBucket(1_000_000.0)
    began = time.monotonic()

    def send() -> None:
        for _ in range(20):
            bucket.take(5_000)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.38 <= time.monotonic() - began < 2.0


def model(size: int, rate: float = 0.0, offset: int = 0) -> ServedModel:
    payload = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    header = ModelHeader(1, 0, 0, size, "", "", offset)
    return ServedModel(header, (payload[: size // 4], payload[size // 4 :]), rate)


def timed_s() -> float:
    began = time.monotonic()
    total = sum(len(chunk) for chunk in paced(model(500_000, 1e6), threading.Event()))
    assert total == 500_000
    return time.monotonic() - began


def test_half_a_second_of_real_time():
    tries = (timed_s() for _ in range(4))  # a busy machine may be late, but not always
    assert any(took_s == pytest.approx(0.5, rel=0.03) for took_s in tries)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(size=st.integers(0, 3_000_000), share=st.floats(0, 1), rate=st.sampled_from([0.0, 1e12]))
def test_exactly_the_bytes_from_the_offset_on(size, share, rate):
    sent = model(size, rate, offset=int(size * share))
    whole = b"".join(bytes(part) for part in sent.parts)
    got = list(paced(sent, threading.Event()))
    assert b"".join(got) == whole[sent.header.offset :]
    assert max(map(len, got), default=0) <= CHUNK_BYTES


def test_chunks_suit_the_rate():
    quick = [len(chunk) for chunk in paced(model(16 * 2**20), threading.Event())]
    assert max(quick) == CHUNK_BYTES
    slow = []
    for chunk in paced(model(10**6), threading.Event()):
        slow.append(len(chunk))
        time.sleep(0.05 if len(slow) < 2 else 0.31)
        if len(slow) == 6:
            break
    assert slow[0] == 64 * 2**10
    assert slow[-1] == 16 * 2**10  # a chunk must never take seconds to arrive


def test_buffers_are_not_taken_for_a_fast_link(monkeypatch):
    """The link buffers a megabyte at once and then accepts 100 kB/s."""
    now, sent, took = [0.0], 0, []
    monkeypatch.setattr("dystop.testbed.transport.pacing.time.monotonic", lambda: now[0])
    for chunk in paced(model(4 * 2**20), threading.Event()):
        took.append(0.001 if sent < 2**20 else len(chunk) / 1e5)
        sent, now[0] = sent + len(chunk), now[0] + took[-1]
    assert sent == 4 * 2**20
    assert max(took) < 1.5  # half of what a receiver bears


def test_the_end_of_a_pull_ends_the_pause_at_once():
    over = threading.Event()
    threading.Timer(0.05, over.set).start()
    began = time.monotonic()
    assert list(paced(model(10_000, 100.0), over)) == []
    assert time.monotonic() - began < 1.0


def test_portions():
    assert chunk_size(1e9, CHUNK_BYTES) == CHUNK_BYTES
    assert chunk_size(1.0, CHUNK_BYTES) == 1024


def test_the_smallest_rate_waits_for_a_finite_time():
    waits = []
    next(paced(model(10_000, 5e-324), threading.Event(), waits.append))
    assert 0 < waits[0] <= 1024
