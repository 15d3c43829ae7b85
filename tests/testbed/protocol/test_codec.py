"""Messages: every valid message round-trips, and everything else is refused."""

import json
import pickle  # noqa: TID251 (to make bombs)
import time
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dystop.testbed.protocol import messages as m
from dystop.testbed.protocol.codec import (
    MAX_HEADER_BYTES,
    MAX_ITEMS,
    MAX_MESSAGE_BYTES,
    MAX_OBJECTS,
    BadMessage,
    Peerwise,
    decode,
    encode,
    shown,
)
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest
from support.testbed.pickle_bomb import Bomb

quick = settings(derandomize=True, deadline=None, max_examples=200)

SIDES = {"coordinator": m.ToCoordinator, "worker": m.ToWorker, "peer": Peerwise}
PEER = m.Peer("w03", 3, "127.0.0.1:4711", "ab" * 32)
USED = m.Used(3, 0, 7, 2, "cd" * 32, 1000, 0.5, distance=2.5)
ORDER = m.Execute(
    2, 7, True,
    (m.Stage((m.Pull(3, True, mask=(5, 0.25)),), m.Row((1, 3), (0.5, 0.5), "masked", (5, 0.25))),),
    steps=10, budget_s=3.0,
)  # fmt: skip
EXAMPLES = [
    ("coordinator", m.Join(1, "ab", 1, "h:1", "cd", "0.1", 10, (5, 5), 1, -1, 0, "idle", 0,
                           (m.Mail(2, 0, 3),))),
    ("coordinator", m.Heartbeat(7, 1, "training", 3, True)),
    ("coordinator", m.ExecuteAck(7, "queued")),
    ("coordinator", m.Report(7, "mixed", (USED,), (m.Rejected(4, 0, "norm"),), loss=None)),
    ("coordinator", m.Report(7, "trained", loss=0.25)),
    ("coordinator", m.Scored(7, 0.5, 0.1, 0.6, 1.0, None, 0, (2,))),
    ("coordinator", m.Scored(7, 0.5, 0.1, 0.6, 1.0, None, 0, (), 2, (0.5, None), (1.5, None))),
    ("coordinator", m.NotTestable(7, "none of 3 models arrived")),
    ("coordinator", m.Judged(2, 7, "refused", "norm", "cd" * 32)),
    ("coordinator", m.Leave("bye")),
    ("coordinator", m.Incident(3, "half_open", 40, "no request")),
    ("coordinator", m.Complaint("x", "y")),
    ("worker", m.JoinOk("ab", 1, 1, 1.0, True, (PEER,))),
    ("worker", m.Reject("schema", "other model", 1.0)),
    ("worker", m.Heartbeat(7, 1)),
    ("worker", ORDER),
    ("worker", m.Cancel(1, 7)),
    ("worker", m.ReportAck(7, "failed")),
    ("worker", m.Roster(1, (PEER, PEER))),
    ("worker", m.Evaluate(1, 7, (0, 1))),
    ("worker", m.Judge(1, 2, 7, 9, mask=(3, 0.5))),
    ("worker", m.Stop(1, "done")),
    ("worker", m.Complaint("x", "y")),
    ("peer", PullRequest("ab", 7, mask=(3, 0.5), holds="cd")),
    ("peer", ModelHeader(1, -1, 0, 10, "ab", "cd", copy="ef", messages=2)),
    ("peer", PullRefused("busy", 0.5)),
]  # fmt: skip


def code_of(data: bytes, side: str = "coordinator") -> str:
    with pytest.raises(BadMessage) as caught:
        decode(data, side)
    text = caught.value.text
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 200
    return caught.value.code


def read_or_none(data: bytes, side: str):
    """Return the message, or None if it is refused; any other error propagates."""
    try:
        return decode(data, side)
    except BadMessage:
        code_of(data, side)
        return None


def test_every_message_has_an_example():
    shown_types = {(side, type(message)) for side, message in EXAMPLES}
    assert shown_types == {(s, t) for s, u in SIDES.items() for t in get_args(u)}


@pytest.mark.parametrize(("side", "message"), EXAMPLES)
def test_round_trip(side, message):
    data = encode(message)
    assert decode(data, side) == message
    written = json.loads(data)
    assert set(written) == {"type", *(f.name for f in fields(message))}
    assert type(decode(data, side)) is type(message)


@pytest.mark.parametrize(("side", "message"), EXAMPLES)
def test_the_other_side_refuses_it(side, message):
    for other in SIDES:
        if type(message) not in get_args(SIDES[other]):
            assert code_of(encode(message), other) == "type"


def test_every_field_is_strict():
    for side, message in EXAMPLES:
        written = json.loads(encode(message))
        for key in written.keys() - {"type"}:
            for wrong in ({"a": 1}, [[[]]], "\x00" * 300, float("nan"), 1e400, -(10**400)):
                bad = json.dumps(written | {key: wrong}).encode()
                assert code_of(bad, side) in ("invalid", "malformed")
        assert code_of(json.dumps(written | {"more": 1}).encode(), side) == "invalid"


BEAT = '{"type":"heartbeat","seq":%s,"epoch":1}'


@pytest.mark.parametrize(
    "seq", ["1.0", "true", '"1"', "null", "-1", "9223372036854775808", "1e3", "[1]", "NaN"]
)
def test_nothing_is_coerced(seq):
    assert code_of((BEAT % seq).encode()) == "invalid"


def test_an_integer_may_stand_for_a_float():
    message = decode(b'{"type":"report","round":1,"kind":"mixed","seconds":2}', "coordinator")
    assert message == m.Report(1, "mixed", seconds=2.0)
    assert isinstance(message.seconds, float)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b"{}", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b'{"seq":1,"type":"heartbeat","epoch":1}', "malformed"),
        (b'{"type":"heartbeat","type":"leave","seq":1,"epoch":1}', "invalid"),
        (b'{"type":"heartbeat","seq":1,"epoch":1} {}', "malformed"),
        (b'{"type":"heartbeat","seq":1,"epoch":1', "malformed"),
        (b'{"type":"heartbeat","seq":1,"epoch":1,}', "malformed"),
        (b'{"type":"heartbeat"}', "invalid"),
        (b'{"type":"__import__"}', "type"),
        (b'{"type":"Heartbeat","seq":1,"epoch":1}', "malformed"),
        (b'{"type":"leave","text":"\\ud800"}', "malformed"),
        (b'{"type":"leave","text":"' + b"x" * 201 + b'"}', "invalid"),
        (b'{"type":"leave","\\u001b[2J":1}', "invalid"),
    ],
)
def test_malformed(data, code):
    assert code_of(data) == code


def test_spaces_and_an_empty_rest_are_fine():
    assert decode(b' { "type" : "leave" } ', "coordinator") == m.Leave()
    assert decode(b'{"type":"leave"}', "coordinator") == m.Leave()


def test_limits():
    assert code_of(b" " * (MAX_MESSAGE_BYTES + 1)) == "size"
    assert code_of(b" " * (MAX_HEADER_BYTES + 1), "peer") == "size"
    assert code_of(b'{"type":"leave","text":' + b"[" * 5000) == "depth"
    assert code_of(b'{"type":"leave","text":' + b'{"a":' * 5000 + b"1" + b"}" * 5001) == "depth"
    assert code_of(b'{"type":"leave","text":' + b"[{}," * 17) == "depth"
    fine = b'{"type":"leave","text":"' + b"[" * 100 + b'\\"{{"}'  # brackets in a string
    assert decode(fine, "coordinator").text.startswith("[[[")


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"join","mail":[' + b"{}," * 600_000 + b"{}]}",
        b'{"type":"join","mail":[' + b"{}," * (MAX_OBJECTS - 2) + b"{}]}",
        b'{"type":"join","label_counts":[' + b'"a",' * 400_000 + b"1]}",
        b'{"type":"join","label_counts":[' + b'"a",' * (MAX_ITEMS - 1) + b"1]}",
        b'{"type":"leave",' + b'"a":1,' * (MAX_ITEMS - 2) + b'"a":1}',
        b'{"type":"leave","text":"' + b'\\"' * 1_000_000,
        b'{"type":"leave","text":' + b"[" * 2_000_000,
        b'{"type":"leave","text":' + b'"x' * 1_000_000,
        b'{"type":"leave","text":' + b"9" * 2_000_000 + b"}",
        b" " * 2_000_000,
        b'{"type":"' + b"a" * 2_000_000,
    ],
    ids=range(11),
)
def test_the_worst_messages_cost_little(data):
    begin = time.process_time()
    code_of(data)
    assert time.process_time() - begin < 2


def test_what_would_be_refused_is_not_sent():
    bad = [
        m.Report(1, "mixed", loss=float("nan")),
        m.Report(1, "mixed", seconds=float("inf")),
        m.Report(1, "mixed", used=(replace(USED, distance=float("inf")),)),
        m.Report(-1, "mixed"),
        m.Leave("x" * 201),
        m.Report(1, "mixed", text="x" * 3_000_000),
    ]
    for message in bad:
        with pytest.raises(BadMessage):
            encode(message)


def test_the_largest_roster_fits():
    roster = m.Roster(1, tuple(replace(PEER, node=k) for k in range(m.MAX_NODES)))
    assert decode(encode(roster), "worker") == roster


def test_text_of_peers_is_escaped():
    assert shown("\x1b[31m\n\u202e\ud800") == r"\x1b[31m\n\u202e\ud800"
    assert len(shown("\n" * 10_000)) == 200
    assert shown("x" * 200) == "x" * 200
    error = BadMessage("invalid", "a\r\nb" * 100)
    assert str(error).isprintable()


@quick
@given(st.binary(max_size=200), st.sampled_from(list(SIDES)))
@example(b'{"type":"leave"}', "coordinator")
def test_any_bytes(data, side):
    message = read_or_none(data, side)
    assert message is None or decode(encode(message), side) == message


@quick
@given(st.sampled_from(EXAMPLES), st.data())
def test_mutated_messages(case, data):
    side, message = case
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_or_none(bytes(raw), side)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@quick
@given(st.sampled_from(EXAMPLES), st.data(), json_values)
def test_any_value_in_any_field(case, data, value):
    side, message = case
    written = json.loads(encode(message))
    written[data.draw(st.sampled_from(sorted(written.keys() - {"type"})))] = value
    read = read_or_none(json.dumps(written).encode(), side)
    assert read is None or decode(encode(read), side) == read


def test_pickle_bombs_do_nothing(tmp_path):
    canary = tmp_path / "canary"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        bomb = pickle.dumps(Bomb(canary), protocol)
        for side in SIDES:
            code_of(bomb, side)
    assert not canary.exists()


def test_a_heartbeat_is_cheap():
    beat = m.Heartbeat(7, 1)
    best = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(200):
            decode(encode(beat), "coordinator")
        best = min(best, (time.perf_counter() - begin) / 200)
    assert best < 100e-6
