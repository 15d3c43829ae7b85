"""Compressed messages on the wire: they arrive unchanged, and everything else is refused."""

import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.rng import stream
from dystop.testbed.protocol.coded import (
    CodedReceiver,
    HeldCopy,
    NothingHeld,
    digest_of,
    messages_header,
    messages_size,
    pack_messages,
    unpack_messages,
)
from dystop.testbed.protocol.payload import BadModel, Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.worker.public_copies import HeldCopies
from support.codecs import codec_for

SIZES = (20, 9, 4)
WIDTH, NODE = sum(SIZES), 3
SETTINGS = {
    "topk": codec_for("topk", 0.25, SIZES, 5),  # positions are bits
    "topk-list": codec_for("topk", 0.04, SIZES, 5),  # positions are a list
    "randomk": codec_for("randomk", 0.25, SIZES, 5),
    "sign": codec_for("sign", 0.25, SIZES, 5),
}
INITIAL = np.linspace(-1, 1, WIDTH).astype(np.float32)


def schema_for(compression):
    return Schema(tuple((f"t{k}", (n,)) for k, n in enumerate(SIZES)), codec=compression)


def payload_of(compression, messages):
    return b"".join(map(bytes, pack_messages(compression, messages)))


def random_vector(seed):
    return stream(seed, "test").normal(size=WIDTH).astype(np.float32)


def messages_of(compression, count, seed=0):
    return [compression.message(random_vector(seed + k), NODE, k + 1) for k in range(count)]


def header_of(compression, payload, copy, count=1, **changes):
    schema = schema_for(compression)
    header = ModelHeader(
        7, 2, 1, len(payload), digest([payload]), schema.hash, copy=copy, messages=count
    )
    return replace(header, **changes)


def receive(compression, payload, header, copies=None, *, delta=False, step=1 << 20):
    copies = copies or HeldCopies(INITIAL, 4)
    receiver = CodedReceiver(schema_for(compression), NODE, copies, delta=delta)
    receiver.begin(header)
    for at in range(0, len(payload), step):
        receiver.write(memoryview(payload)[at : at + step])
    return receiver.finish()


def refusal(compression, payload, header, copies=None, *, delta=False):
    with pytest.raises(BadModel) as caught:
        receive(compression, payload, header, copies, delta=delta)
    return caught.value.code


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=40)
@given(seed=st.integers(0, 999), count=st.integers(0, 5))
def test_messages_arrive_as_the_compressor_made_them(name, seed, count):
    compression = SETTINGS[name]
    sent = messages_of(compression, count, seed)
    payload = payload_of(compression, sent)
    assert len(payload) == messages_size(compression, count)
    got = unpack_messages(compression, payload, count)
    for one, two in zip(sent, got, strict=True):
        restored = compression.restored(two, NODE)
        np.testing.assert_array_equal(restored, compression.restored(one, NODE))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_payload_is_a_safetensors_file_of_the_stated_bytes(name):
    compression = SETTINGS[name]
    payload = payload_of(compression, messages_of(compression, 3))
    assert all(len(rows) == 3 for rows in safetensors.numpy.load(payload).values())
    body = len(payload) - len(messages_header(compression, 3))
    address = 16 if compression.name == "randomk" else 0
    assert body == 3 * (compression.message_bytes + address)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("step", [5, 1 << 20])
def test_a_receiver_adds_messages_to_the_copy_that_it_holds(name, step):
    compression, copies = SETTINGS[name], HeldCopies(INITIAL, 4)
    sent = messages_of(compression, 1)
    due = INITIAL + compression.restored(sent[0], NODE)
    payload = payload_of(compression, sent)
    header = header_of(compression, payload, digest_of(due))
    np.testing.assert_array_equal(receive(compression, payload, header, copies, step=step), due)
    assert copies.of(NODE).digest == digest_of(due)


def test_a_whole_copy_needs_no_copy_at_the_receiver():
    compression, vector = SETTINGS["sign"], random_vector(1)
    payload = b"".join(map(bytes, schema_for(compression).pack(vector)))
    header = header_of(compression, payload, digest_of(vector), None)
    np.testing.assert_array_equal(receive(compression, payload, header, NothingHeld()), vector)


def test_an_update_is_one_message_and_changes_no_copy():
    compression, copies = SETTINGS["topk"], HeldCopies(INITIAL, 4)
    sent = messages_of(compression, 1)
    payload = payload_of(compression, sent)
    got = receive(compression, payload, header_of(compression, payload, None), copies, delta=True)
    np.testing.assert_array_equal(got, compression.restored(sent[0], NODE))
    assert copies.of(NODE).digest == digest_of(INITIAL)


def test_a_request_names_the_held_copy_and_no_mask():
    receiver = CodedReceiver(
        schema_for(SETTINGS["topk"]), NODE, HeldCopies(INITIAL, 4), delta=False
    )
    request = receiver.request(PullRequest("ab", 3, mask=(7, 0.5)))
    assert (request.holds, request.mask) == (digest_of(INITIAL), None)


# What a hostile peer may send -------------------------------------------------------------------


def test_the_number_of_messages_is_bounded_before_memory_is_taken():
    compression = SETTINGS["sign"]
    most = compression.most_messages
    for count in (most + 1, 10**6, 2**62):
        header = header_of(compression, b"", digest_of(INITIAL), count, size=2**40)
        assert refusal(compression, b"", header) == "malformed"
    header = header_of(compression, b"", digest_of(INITIAL), most, size=2**40)
    assert refusal(compression, b"", header) == "size"


def test_an_answer_of_another_form_is_refused():
    compression = SETTINGS["topk"]
    payload = payload_of(compression, messages_of(compression, 1))
    fine = header_of(compression, payload, digest_of(INITIAL))
    assert refusal(compression, payload, fine, NothingHeld()) == "malformed"
    assert refusal(compression, payload, fine, delta=True) == "malformed"
    for copy in (None, "", "ab"):
        assert refusal(compression, payload, replace(fine, copy=copy)) == "malformed"
    two = payload_of(compression, messages_of(compression, 2))
    assert refusal(compression, two, header_of(compression, two, None, 2), delta=True) == (
        "malformed"
    )


def test_a_copy_with_another_digest_is_refused_and_forgotten():
    compression, copies = SETTINGS["sign"], HeldCopies(INITIAL, 4)
    held = HeldCopy(digest_of(random_vector(4)), random_vector(4))
    copies.keep(NODE, held)
    payload = payload_of(compression, messages_of(compression, 1))
    assert refusal(compression, payload, header_of(compression, payload, "0" * 64), copies) == (
        "digest"
    )
    assert copies.of(NODE).digest == digest_of(INITIAL)


def changed(compression, name, values, count=1):
    """Return a payload in which one part of the messages is replaced."""
    payload = payload_of(compression, messages_of(compression, count))
    tensors = safetensors.numpy.load(payload)
    part = tensors[name].tobytes()
    at = payload.index(part, len(messages_header(compression, count)))
    new = np.asarray(values, tensors[name].dtype).tobytes()
    return payload[:at] + new + payload[at + len(new) :]


HOSTILE = {
    "a place beyond the model": ("topk-list", "places", [WIDTH], "malformed"),
    "the largest place": ("topk-list", "places", [2**32 - 1], "malformed"),
    "too few places": ("topk", "bits", [0], "malformed"),
    "a bit beyond the model": ("topk", "bits", [0, 0, 0, 0, 1], "malformed"),
    "a sign beyond the model": ("sign", "bits", [0, 0, 0, 0, 1], "malformed"),
    "a negative magnitude": ("sign", "values", [-1.0], "malformed"),
    "an infinite magnitude": ("sign", "values", [np.inf], "not_finite"),
    "not a number": ("randomk", "values", [np.nan], "not_finite"),
    "a negative round": ("randomk", "address", [-1, 0], "malformed"),
    "a huge round": ("randomk", "address", [2**62, 0], "malformed"),
    "a huge stage": ("randomk", "address", [1, 2**40], "malformed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_message_that_cannot_be_one_is_refused(case):
    name, part, values, code = HOSTILE[case]
    compression = SETTINGS[name]
    payload = changed(compression, part, values)
    header = header_of(compression, payload, digest_of(INITIAL))
    assert refusal(compression, payload, header) == code


def test_places_ascend():
    compression = codec_for("topk", 0.01, (200,), 0)  # two places, as a list
    message = compression.message(np.arange(200, dtype=np.float32), 0, 1)
    for places in ([5, 5], [6, 5]):
        with pytest.raises(ValueError, match="ascending"):
            compression.restored({**message, "places": np.array(places)}, NODE)


def test_a_copy_that_is_not_finite_is_refused():
    compression = SETTINGS["topk"]
    vector = np.full(WIDTH, np.nan, np.float32)
    payload = b"".join(map(bytes, schema_for(compression).pack(vector)))
    header = header_of(compression, payload, digest_of(vector), None)
    assert refusal(compression, payload, header) == "not_finite"


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=150)
@given(data=st.data())
def test_mutated_payloads_raise_nothing_else(name, data):
    compression = SETTINGS[name]
    payload = bytearray(payload_of(compression, messages_of(compression, 2)))
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    size = messages_size(compression, 2)
    header = header_of(compression, payload, digest_of(INITIAL), 2, size=size)
    with pytest.raises(BadModel):
        receive(compression, payload, header)


def test_a_header_that_lies_about_its_length_is_refused():
    compression = SETTINGS["sign"]
    payload = bytearray(payload_of(compression, messages_of(compression, 1)))
    payload[:8] = struct.pack("<Q", 2**50)
    header = header_of(compression, bytes(payload), digest_of(INITIAL))
    assert refusal(compression, bytes(payload), header) in ("malformed", "schema")


def test_the_setting_of_a_link_is_part_of_the_schema():
    hashes = {schema_for(c).hash for c in SETTINGS.values()} | {schema_for(None).hash}
    assert len(hashes) == len(SETTINGS) + 1
