"""Payloads: a model arrives unchanged, and everything else is refused."""

import json
import pickle  # noqa: TID251 (to make bombs)
import resource
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from torch import nn

from dystop.errors import ConfigError
from dystop.rng import stream
from dystop.testbed.protocol.payload import (
    BadModel,
    PayloadReceiver,
    Schema,
    digest,
    kept_of,
    schema_of,
    wanted,
)
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullRequest
from dystop.training.flat import layout_of
from support.testbed.pickle_bomb import Bomb

SCHEMA = Schema((("a.weight", (2, 3)), ("a.bias", (3,)), ("b.bias", (3,)), ("b.running_var", (4,))))
VECTOR = np.arange(16, dtype=np.float32)
WHOLE = b"".join(bytes(part) for part in SCHEMA.pack(VECTOR))
HEAD = len(SCHEMA.header_bytes())


def header_of(payload: bytes, **changes) -> ModelHeader:
    return replace(ModelHeader(3, 1, 0, len(payload), digest([payload]), SCHEMA.hash), **changes)


def received(payload: bytes, header: ModelHeader, step: int = 1 << 20) -> np.ndarray:
    receiver = PayloadReceiver(SCHEMA)
    receiver.begin(header)
    for lo in range(0, len(payload), step):
        receiver.write(memoryview(payload)[lo : lo + step])
    return receiver.finish()


def refusal(payload: bytes, header: ModelHeader | None = None) -> BadModel:
    with pytest.raises(BadModel) as caught:
        received(payload, header or header_of(payload))
    return caught.value


# What is sent arrives ---------------------------------------------------------------------------


def test_it_is_a_safetensors_file():
    tensors = safetensors.numpy.load(WHOLE)
    assert sorted(tensors) == ["a.bias", "a.weight", "b.bias", "b.running_var"]
    np.testing.assert_array_equal(tensors["a.weight"], VECTOR[:6].reshape(2, 3))
    np.testing.assert_array_equal(tensors["b.running_var"], VECTOR[12:])
    kept = b"".join(map(bytes, SCHEMA.pack(VECTOR[:5], "masked", 5)))
    np.testing.assert_array_equal(safetensors.numpy.load(kept)["kept"], VECTOR[:5])


def test_pack_and_unpack_do_not_copy():
    parts = SCHEMA.pack(VECTOR)
    assert np.shares_memory(np.frombuffer(parts[1], np.float32), VECTOR)
    assert HEAD % 8 == 0  # so that the floats are aligned
    buffer = bytearray(WHOLE)
    view = SCHEMA.unpack(buffer)
    assert np.shares_memory(view, np.frombuffer(buffer, np.uint8))
    np.testing.assert_array_equal(view, VECTOR)
    assert SCHEMA.size() == len(WHOLE)


@pytest.mark.parametrize("step", [1, 7, HEAD, 1 << 20])
def test_round_trip_in_chunks(step):
    np.testing.assert_array_equal(received(WHOLE, header_of(WHOLE), step), VECTOR)


def test_every_kind_round_trips_and_is_refused_as_another():
    sent = {
        ("model", None): VECTOR,
        ("delta", None): VECTOR,
        ("masked", 5): VECTOR[:5],
        ("delta", 5): VECTOR[:5],
        ("masked", 0): VECTOR[:0],
    }
    for what, vector in sent.items():
        payload = b"".join(map(bytes, SCHEMA.pack(vector, *what)))
        for other in sent:
            if other == what:
                np.testing.assert_array_equal(SCHEMA.unpack(payload, *other), vector)
            else:
                with pytest.raises(BadModel) as caught:
                    SCHEMA.unpack(payload, *other)
                assert caught.value.code in ("size", "schema")


def test_a_schema_of_a_real_model():
    layout = layout_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    schema = schema_of(layout)
    assert schema.width == layout.width
    assert [layout.width - 2, layout.width] == [schema.variances[0].start, schema.variances[0].stop]
    assert "1.num_batches_tracked" not in dict(schema.tensors)  # counters are not sent


def test_different_schemas_have_different_hashes():
    others = [
        Schema((("a", (2, 3)),)),
        Schema((("a", (3, 2)),)),
        Schema((("b", (2, 3)),)),
        Schema((("a", (2,)), ("b", (4,)))),
    ]
    assert len({schema.hash for schema in others}) == 4
    assert Schema((("a", (2, 3)),)).hash == others[0].hash


@pytest.mark.parametrize(
    "tensors",
    [
        (("a", (1,)), ("a", (2,))),
        (("__metadata__", (1,)),),
        (("a" * 300, (1,)),),
        tuple((str(k), (1,)) for k in range(10_001)),
    ],
)
def test_impossible_schemas(tensors):
    with pytest.raises(ConfigError, match="model:"):
        Schema(tensors)


def test_wrong_vectors_are_not_sent():
    for bad in (VECTOR.astype(float), VECTOR[:-1], VECTOR.reshape(4, 4), np.repeat(VECTOR, 2)[::2]):
        with pytest.raises(ValueError, match="cannot send"):
            SCHEMA.pack(bad)
    for what in (("masked", None), ("model", 5)):
        with pytest.raises(ValueError, match="mask"):
            SCHEMA.header_bytes(*what)


def test_a_request_determines_kind_and_coordinates():
    mask = (7, 0.5)
    count = int(kept_of(mask, 16).sum())
    assert wanted(SCHEMA, PullRequest("", 1)) == ("model", None)
    assert wanted(SCHEMA, PullRequest("", 1, delta=True)) == ("delta", None)
    assert wanted(SCHEMA, PullRequest("", 1, mask=mask)) == ("masked", count)
    assert wanted(SCHEMA, PullRequest("", 1, mask=mask, delta=True)) == ("delta", count)


# Resuming ---------------------------------------------------------------------------------------


def test_a_broken_pull_goes_on_where_it_stopped():
    receiver, header = PayloadReceiver(SCHEMA), header_of(WHOLE)
    assert (receiver.version, receiver.received) == (0, 0)
    receiver.begin(header)
    receiver.write(memoryview(WHOLE)[:50])
    assert (receiver.version, receiver.received, receiver.complete) == (3, 50, False)
    with pytest.raises(BadModel, match="50 of"):
        receiver.finish()
    receiver.begin(replace(header, offset=50))
    receiver.write(memoryview(WHOLE)[50:])
    np.testing.assert_array_equal(receiver.finish(), VECTOR)
    assert receiver.total == len(WHOLE)


def test_another_version_starts_over():
    receiver, other = PayloadReceiver(SCHEMA), VECTOR + 1
    payload = b"".join(map(bytes, SCHEMA.pack(other)))
    receiver.begin(header_of(WHOLE))
    receiver.write(memoryview(WHOLE)[:-4])
    receiver.begin(header_of(payload, version=4))
    assert receiver.received == 0
    receiver.write(memoryview(payload))
    np.testing.assert_array_equal(receiver.finish(), other)


@pytest.mark.parametrize(
    "change", [{"offset": 49}, {"offset": 51}, {"offset": 50, "version": 4},
               {"offset": 50, "sha256": "0" * 64}, {"sha256": "00"}, {"offset": 10**12}],
)  # fmt: skip
def test_wrong_resumption(change):
    receiver = PayloadReceiver(SCHEMA)
    receiver.begin(header_of(WHOLE))
    receiver.write(memoryview(WHOLE)[:50])
    with pytest.raises(BadModel) as caught:
        receiver.begin(header_of(WHOLE, **change))
    assert caught.value.code == "malformed"


def test_a_finished_vector_is_not_overwritten():
    receiver = PayloadReceiver(SCHEMA)
    receiver.begin(header_of(WHOLE))
    receiver.write(memoryview(WHOLE))
    vector = receiver.finish()
    receiver.begin(header_of(WHOLE))
    receiver.write(memoryview(WHOLE)[:-4])
    assert not np.shares_memory(vector, receiver._filled)
    np.testing.assert_array_equal(vector, VECTOR)


def test_a_wrong_digest_can_be_tried_again():
    receiver = PayloadReceiver(SCHEMA)
    receiver.begin(header_of(WHOLE))
    receiver.write(memoryview(WHOLE[:-1] + b"!"))
    with pytest.raises(BadModel) as caught:
        receiver.finish()
    assert (caught.value.code, receiver.version, receiver.received) == ("digest", 0, 0)


# What is refused, and with which code (B-8, F-5) -------------------------------------------------


def rewritten(edit) -> bytes:
    """Return the payload with another header; `edit` changes the parsed one or gives its text."""
    head = json.loads(WHOLE[8:HEAD])
    text = edit(head) or json.dumps(head, separators=(",", ":"))
    text = text.encode().ljust(HEAD - 8)
    return struct.pack("<Q", len(text)) + text + WHOLE[HEAD:]


def swap(head):
    head["a.bias"], head["b.bias"] = head["b.bias"], head["a.bias"]


HEADERS = {
    "type": lambda head: head["a.bias"].update(dtype="I32"),
    "shape": lambda head: head["a.weight"].update(shape=[3, 2]),
    "name": lambda head: head.update({"c.bias": head.pop("b.bias")}),
    "missing": lambda head: head.pop("b.bias") and None,
    "extra": lambda head: head.update(x={"dtype": "F32", "shape": [0], "data_offsets": [64, 64]}),
    "swapped": swap,
    "metadata": lambda head: head["__metadata__"].update(kind="delta"),
    "offsets": lambda head: head["a.bias"].update(data_offsets=[0, 10**12]),
}


@pytest.mark.parametrize("what", HEADERS)
def test_other_headers(what):
    payload = rewritten(HEADERS[what])
    with pytest.raises(BadModel) as caught:
        SCHEMA.check_header(payload)
    assert caught.value.code == "schema"
    assert refusal(payload, header_of(WHOLE, sha256=digest([payload]))).code in ("schema", "size")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"a":', "\x00\x01", "[" * 100, '{"a":' * 60, '"' + "x" * 90],
)
def test_no_header_at_all(text):
    payload = rewritten(lambda _: text or " ")
    assert refusal(payload[: len(WHOLE)].ljust(len(WHOLE)), header_of(WHOLE)).code == "malformed"


def test_a_million_tensors_and_deep_nesting():
    many = b"{" + b'"a":0,' * 10**6 + b"}"
    deep = b"[" * 5000 + b"]" * 5000
    for text in (many, deep, deep * 3):
        with pytest.raises(BadModel) as caught:
            SCHEMA.check_header(struct.pack("<Q", len(text)) + text)
        assert caught.value.code == "malformed"
    with pytest.raises(BadModel, match="1000000000000"):
        SCHEMA.check_header(struct.pack("<Q", 10**12) + many)
    for cut in range(9):
        with pytest.raises(BadModel):
            SCHEMA.check_header(WHOLE[:cut])


def test_peer_text_is_escaped_and_cut():
    def hostile(head):
        head["\x1b[2J\n" + "x" * 20] = head.pop("b.running_var")

    text = refusal(rewritten(hostile), header_of(WHOLE)).text
    assert text.isprintable()
    assert text.isascii()
    assert len(text) <= 200
    assert len(BadModel("schema", "\n" * 1000).text) <= 200


def test_announcements():
    assert refusal(WHOLE, header_of(WHOLE, schema="0" * 64)).code == "schema"
    assert refusal(WHOLE, header_of(WHOLE, size=10**12)).code == "size"
    assert refusal(WHOLE, header_of(WHOLE, size=len(WHOLE) - 1)).code == "size"
    assert refusal(WHOLE[:-1], header_of(WHOLE)).code == "size"
    assert refusal(WHOLE + b"\0", header_of(WHOLE)).code == "size"
    assert refusal(WHOLE, header_of(WHOLE, sha256="0" * 64)).code == "digest"
    with pytest.raises(BadModel, match="before the header"):
        PayloadReceiver(SCHEMA).write(memoryview(b"x"))


def test_no_memory_is_allocated_before_the_header_is_checked():
    receiver = PayloadReceiver(SCHEMA)
    for change in ({"size": 10**12}, {"schema": "f" * 64}, {"offset": 10**12}):
        with pytest.raises(PullBroken):
            receiver.begin(header_of(WHOLE, **change))
    assert receiver._buffer is None


def test_an_endless_stream_is_cut_at_the_size():
    receiver, chunk = PayloadReceiver(SCHEMA), memoryview(WHOLE)
    receiver.begin(header_of(WHOLE))
    receiver.write(chunk)
    for _ in range(3):
        with pytest.raises(BadModel):
            receiver.write(chunk[:1])
    assert len(receiver._filled) == len(WHOLE)


# Fuzz (F-4) -------------------------------------------------------------------------------------


def mutant(rng: np.random.Generator) -> bytes:
    """Return the payload with a defect: bits, length, header, or tensors swapped."""
    data, kind = bytearray(WHOLE), rng.integers(6)
    at = int(rng.integers(len(data)))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = bytes(int(rng.integers(1, 64)))
    elif kind == 3:
        data[int(rng.integers(HEAD))] = int(rng.integers(256))
    elif kind == 4:
        a, b = HEAD + 24, HEAD + 36  # two tensors of equal size
        data[a:b], data[b : b + 12] = data[b : b + 12], data[a:b]
    else:
        data[:8] = struct.pack("<Q", int(rng.integers(2**63)))
    return bytes(data)


def test_a_hundred_thousand_mutants():
    rng, receiver, honest = stream(0, "mutants"), PayloadReceiver(SCHEMA), header_of(WHOLE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = same = 0
    for _ in range(100_000):
        payload = mutant(rng)
        same += payload == WHOLE
        try:
            receiver.begin(honest)
            receiver.write(memoryview(payload))
            vector = receiver.finish()
        except (BadModel, PullBroken):
            continue
        accepted += 1
        np.testing.assert_array_equal(vector, VECTOR)
    assert accepted == same < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_mutated_announcements():
    rng, honest = stream(0, "announcements"), header_of(WHOLE)
    for _ in range(5000):
        field = ["size", "sha256", "schema", "offset"][int(rng.integers(4))]
        value = {
            "size": int(rng.integers(2**62)),
            "offset": int(rng.integers(1, 2**62)),
        }.get(field, bytes(rng.integers(0, 256, 32, dtype=np.uint8)).hex())
        with pytest.raises(PullBroken):
            received(WHOLE, replace(honest, **{field: value}))


# Code instead of data (F-6) ---------------------------------------------------------------------


def test_pickle_bombs_do_nothing(tmp_path):
    canary = tmp_path / "canary"
    bomb = pickle.dumps(Bomb(canary))
    shaped = struct.pack("<Q", len(bomb)) + bomb
    for payload in (bomb, shaped, bomb.ljust(len(WHOLE)), WHOLE[:HEAD] + bomb):
        for header in (header_of(WHOLE), header_of(payload)):
            with pytest.raises(BadModel):
                received(payload, header)
        with pytest.raises(BadModel):
            SCHEMA.unpack(payload)
    assert not canary.exists()
    pickle.loads(bomb)
    assert canary.exists()  # the bomb was a real one


# Numbers of 8 bits -------------------------------------------------------------------------------

SMALL = replace(SCHEMA, encoding="I8")
ROUGH = stream(0, "model").normal(size=16).astype(np.float32)


def packed(schema: Schema, vector: np.ndarray, *what) -> bytes:
    return b"".join(map(bytes, schema.pack(vector, *what)))


def test_eight_bits_need_a_quarter_of_the_bytes_and_are_a_safetensors_file():
    payload = packed(SMALL, ROUGH)
    head = len(SMALL.header_bytes())
    assert len(payload) - head == 16 + 4 * 4  # a byte for each number, a scale for each tensor
    assert len(payload) == SMALL.size()
    tensors = safetensors.numpy.load(payload)
    assert tensors["a.weight"].dtype == np.int8
    weights = tensors["a.weight"].reshape(-1) * tensors["__scales__"][0]
    np.testing.assert_array_equal(weights, SMALL.unpack(payload)[:6])
    assert SMALL.hash != SCHEMA.hash


@pytest.mark.parametrize(
    "what", [("model", None), ("delta", None), ("masked", 5), ("delta", 5), ("masked", 0)]
)
def test_eight_bits_round_trip_in_every_form(what):
    vector = ROUGH[: what[1]] if what[1] is not None else ROUGH
    payload = packed(SMALL, vector, *what)
    assert payload == packed(SMALL, vector.copy(), *what)  # the rounding follows from the model
    assert len(payload) == SMALL.size(*what)
    found = SMALL.unpack(payload, *what)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vector, atol=np.abs(ROUGH).max() / 127)


def test_payloads_of_the_other_encoding_are_refused():
    for mine, other in ((SMALL, SCHEMA), (SCHEMA, SMALL)):
        payload = packed(other, ROUGH)
        with pytest.raises(BadModel):
            mine.unpack(payload)
        with pytest.raises(BadModel, match="schema"):
            PayloadReceiver(mine).begin(header_of(payload, schema=other.hash))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_hostile_scale_is_refused(scale):
    payload = bytearray(packed(SMALL, ROUGH))
    head = len(SMALL.header_bytes())
    payload[head : head + 4] = np.float32(scale).tobytes()
    with pytest.raises(BadModel, match="scale"):
        SMALL.unpack(payload)


def test_a_hostile_number_is_refused():
    payload = bytearray(packed(SMALL, ROUGH))
    payload[-1] = 0x80  # -128, which no rounding gives
    with pytest.raises(BadModel, match="8-bit"):
        SMALL.unpack(payload)


def test_no_tensor_has_the_name_of_the_scales():
    with pytest.raises(ConfigError, match="__scales__"):
        Schema((("__scales__", (2,)),))
