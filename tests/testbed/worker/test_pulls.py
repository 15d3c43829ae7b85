"""Pulls through breaks and refusals, on a clock that only pauses advance."""

import threading
import time

import numpy as np
import pytest

from dystop.testbed.events import PullFailed, PullFinished, StartPull
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullDenied, PullRequest
from dystop.testbed.worker.pulls import LONGEST_PAUSE_S, PeerFailures, PullThreads, pull

SCHEMA = Schema((("w", (1000,)),))
MODEL = np.arange(1000, dtype=np.float32)
PAYLOAD = b"".join(bytes(part) for part in SCHEMA.pack(MODEL))


class ScriptedTransport:
    """A transport that follows a script, pull by pull; each pull takes `step_s`."""

    def __init__(self, *steps, step_s: float = 0.0) -> None:
        self.steps, self.step_s = list(steps), step_s
        self.now_s = 50.0
        self.pauses: list[float] = []
        self.requests: list[PullRequest] = []
        self.timeouts = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def pull(self, name, address, request, receiver, timeouts, cancelled) -> None:
        assert (name, address) == ("w03", "somewhere:1")
        self.requests.append(request)
        self.timeouts.append(timeouts)
        self.now_s += self.step_s
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        step(request, receiver)


def send(count: int | None = None, error: Exception | None = None, version=7, payload=PAYLOAD):
    """Return a step that sends `count` bytes from the requested offset and then fails."""

    def step(request, receiver) -> None:
        offset = request.offset if request.version == version else 0
        sha = digest([PAYLOAD])
        receiver.begin(ModelHeader(version, 3, 2, len(payload), sha, SCHEMA.hash, offset))
        end = len(payload) if count is None else offset + count
        if end > offset:
            receiver.write(memoryview(payload)[offset:end])
        if error is not None:
            raise error

    return step


def fail(error: Exception):
    def step(request, receiver) -> None:
        raise error

    return step


ALL = send()
CORRUPT = send(payload=PAYLOAD[:-1] + b"?")


def run(script, budget_s: float = 100.0, exact=False, cancelled=None, patience=1.0):
    request = PullRequest("ab", round=5, exact=exact)
    action = StartPull(9, 3, "w03", "somewhere:1", request, script.now_s + budget_s, patience)
    return pull(
        script, action, lambda: PayloadReceiver(SCHEMA), Timeouts(), cancelled or threading.Event(),
        script.clock, script.sleep,
    )  # fmt: skip


def test_a_pull_without_faults():
    done = run(ScriptedTransport(ALL, step_s=0.5))
    assert isinstance(done, PullFinished)
    assert np.array_equal(done.vector, MODEL)
    assert (done.key, done.bytes, done.seconds, done.resumes) == (9, len(PAYLOAD), 0.5, 0)
    assert done.header.version == 7


def test_a_pull_resumes_with_the_same_version():
    script = ScriptedTransport(
        send(1000, PullBroken("unreachable")), fail(PullBroken("unreachable")),
        send(500, PullBroken("timeout")), ALL,
    )  # fmt: skip
    done = run(script)
    assert isinstance(done, PullFinished)
    assert np.array_equal(done.vector, MODEL)
    assert [(r.version, r.offset) for r in script.requests] == [
        (0, 0),
        (7, 1000),
        (7, 1000),
        (7, 1500),
    ]
    assert (done.bytes, done.resumes) == (len(PAYLOAD), 3)


def test_a_pull_starts_over_if_its_version_is_gone():
    script = ScriptedTransport(send(1000, PullBroken("unreachable")), send(version=8))
    done = run(script)
    assert done.header.version == 8
    assert np.array_equal(done.vector, MODEL)
    assert done.bytes == len(PAYLOAD) + 1000


def test_pauses_grow_and_stay_below_their_bound():
    script = ScriptedTransport(
        *[fail(PullDenied("busy"))] * 8, ALL
    )  # a busy peer is there, so that it is asked for long
    run(script)
    bounds = [0.2, 0.4, 0.8, 1.5, 1.5, 1.5, 1.5, 1.5]
    assert all(0 <= p <= most for p, most in zip(script.pauses, bounds, strict=True))
    assert len(set(script.pauses)) == 8  # full jitter


def test_a_busy_peer_determines_the_pause():
    script = ScriptedTransport(fail(PullDenied("busy", retry_s=1.2)), ALL)
    assert isinstance(run(script), PullFinished)
    assert script.pauses == [1.2]


def test_a_pause_ends_at_the_deadline():
    script = ScriptedTransport(fail(PullDenied("busy", retry_s=1e9)))
    done = run(script, budget_s=0.2)
    assert (done.code, done.bytes, done.seconds) == ("busy", 0, pytest.approx(0.2))


def test_a_peer_that_is_always_busy_is_given_up_and_its_retry_hint_is_bounded():
    for step_s in (0.0, 2.0):  # it refuses at once, or as late as it can
        script = ScriptedTransport(fail(PullDenied("busy", retry_s=1e9)), step_s=step_s)
        done = run(script, budget_s=9.0)
        assert (done.code, done.bytes) == ("busy", 0)
        assert done.seconds < 3.0 + LONGEST_PAUSE_S + step_s
        assert max(script.pauses) <= LONGEST_PAUSE_S
    script = ScriptedTransport(*[fail(PullDenied("busy", retry_s=1.0))] * 25, ALL)
    assert isinstance(run(script, budget_s=90.0), PullFinished)  # a long pull may wait for long


def test_a_peer_that_failed_before_gets_less_time():
    failures, seconds = PeerFailures(), []
    for _ in range(5):
        script = ScriptedTransport(fail(PullDenied("busy", retry_s=1e9)))
        done = run(script, budget_s=9.0, patience=failures.patience("w03"))
        failures.pull_ended("w03", failed=True)
        seconds.append(done.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[2] <= 0.5
    assert failures.patience("w04") == 1.0
    for k in range(3):
        failures.pull_ended(f"w1{k}", failed=True, busy=True)
    assert failures.patience("w04") < 0.02  # all are busy for this worker
    script = ScriptedTransport(fail(PullBroken("unreachable")), step_s=0.1)
    assert run(script, patience=failures.patience("w03")).seconds < 3.0
    slow = ScriptedTransport(*[send(400, PullBroken("timeout"))] * 9, ALL, step_s=5.0)
    assert isinstance(run(slow, patience=failures.patience("w03")), PullFinished)  # it sends


def test_a_busy_peer_is_named():
    events = []
    transport = ScriptedTransport(fail(PullDenied("busy", retry_s=1e9)))
    threads = PullThreads(transport, SCHEMA, Timeouts(away_s=0.1), events.append)
    request = PullRequest("ab", round=5)
    threads.start(StartPull(9, 3, "w03", "somewhere:1", request, time.monotonic() + 0.3))
    threads._pool.shutdown()
    incident, failed = events
    assert (incident.peer, incident.kind, failed.code) == ("w03", "busy", "busy")


def test_corrupt_bytes_are_pulled_once_more_from_the_beginning():
    script = ScriptedTransport(CORRUPT, ALL)
    done = run(script)
    assert isinstance(done, PullFinished)
    assert [r.offset for r in script.requests] == [0, 0]
    assert done.bytes == 2 * len(PAYLOAD)
    again = ScriptedTransport(CORRUPT)
    assert run(again).code == "digest"
    assert len(again.requests) == 2


@pytest.mark.parametrize("code", ["wrong_run", "schema", "size"])
def test_permanent_refusals_end_the_pull(code):
    script = ScriptedTransport(fail(PullDenied(code)))
    assert run(script).code == code
    assert len(script.requests) == 1


@pytest.mark.parametrize("code", ["not_authorised", "no_model"])
def test_temporary_refusals_are_retried(code):
    assert isinstance(run(ScriptedTransport(*[fail(PullDenied(code))] * 2, ALL)), PullFinished)
    script = ScriptedTransport(fail(PullDenied(code)))
    assert run(script).code == code
    assert len(script.requests) == 3


def test_a_round_that_is_over_at_the_other_end_is_not_waited_for():
    script = ScriptedTransport(fail(PullDenied("timeout")))
    assert run(script, exact=True).code == "timeout"
    assert len(script.requests) == 1


def test_a_peer_that_stays_away_is_given_up():
    script = ScriptedTransport(send(1000, PullBroken("timeout")), fail(PullBroken("unreachable")))
    done = run(script)
    assert done.code == "unreachable"
    assert done.bytes == 1000
    assert 4.0 <= done.seconds <= 5.5


def test_a_slow_peer_that_brings_bytes_is_not_given_up():
    script = ScriptedTransport(*[send(100, PullBroken("timeout"))] * 30, ALL, step_s=3.0)
    assert isinstance(run(script, budget_s=1000.0), PullFinished)


def test_the_deadline_ends_it():
    script = ScriptedTransport(send(100, PullBroken("timeout")), step_s=3.0)
    done = run(script, budget_s=10.0)
    assert done.code == "timeout"
    assert done.seconds >= 10.0
    assert len(script.requests) <= 4


def test_a_cancelled_pull_ends():
    cancelled = threading.Event()
    cancelled.set()
    script = ScriptedTransport(ALL)
    assert isinstance(run(script, cancelled=cancelled), PullFailed)
    assert script.requests == []


def test_an_error_after_the_last_byte_is_ignored():
    script = ScriptedTransport(send(len(PAYLOAD), PullBroken("unreachable")))
    assert isinstance(run(script), PullFinished)
    assert len(script.requests) == 1


def test_an_exact_pull_may_wait_until_its_deadline():
    script = ScriptedTransport(ALL)
    run(script, budget_s=77.0, exact=True)
    assert script.timeouts[0].first_byte_s == 77.0
    usual = ScriptedTransport(ALL)
    run(usual, budget_s=77.0)
    assert usual.timeouts[0].first_byte_s == Timeouts().first_byte_s
    assert usual.timeouts[0].progress_s == Timeouts().progress_s


def test_what_does_not_fit_the_schema_is_given_up():
    other = Schema((("w", (999,)),))

    def step(request, receiver) -> None:
        receiver.begin(ModelHeader(7, 3, 2, other.size(), "0" * 64, other.hash))

    assert run(ScriptedTransport(step)).code == "schema"
