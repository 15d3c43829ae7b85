"""The fuzz targets accept valid bytes, refuse what once broke them, and report what they find."""

import io
import json
import zipfile

import pytest

from fuzz.engine import Target, run, run_in_child
from fuzz.mutations import of_bytes, of_json
from fuzz.targets import NAMES, make_target

INPUTS = 40  # `make fuzz` tries more of them


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_target_ends_on_no_input(name, tmp_path):
    target = make_target(name, tmp_path)
    for seed in target.seeds:
        target.read(seed)
    inputs, findings = run(target, 1, inputs=INPUTS)
    assert inputs == INPUTS
    assert [str(finding) for finding in findings] == []


def header_of(data, change):
    """Return a safetensors file with another header."""
    length = int.from_bytes(data[:8], "little")
    head = json.dumps(change(json.loads(data[8 : 8 + length]))).encode()
    return len(head).to_bytes(8, "little") + head + data[8 + length :]


def with_tree(tree):
    return lambda data: header_of(
        data, lambda head: {**head, "__metadata__": {**head["__metadata__"], "tree": tree}}
    )


def with_card(**changes):
    def change(head):
        ((name, card),) = head["__metadata__"].items()
        return {**head, "__metadata__": {name: json.dumps({**json.loads(card), **changes})}}

    return lambda data: header_of(data, change)


def with_member(name, content):
    """Return what adds a member to a zip archive, in the place of the array of this name."""

    def change(data):
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for one in old.namelist():
                if one.removesuffix(".npy") != name.removesuffix(".npy"):
                    new.writestr(one, old.read(one))
            new.writestr(name, content)
        return out.getvalue()

    return change


def with_line(**changes):
    def change(data):
        first, *rest = data.splitlines(keepends=True)
        return b"".join([json.dumps({**json.loads(first), **changes}).encode() + b"\n", *rest])

    return change


def without(kind, field):
    """Return what removes a field from the lines of a kind."""

    def change(data):
        lines = map(json.loads, data.splitlines())
        kept = [
            {k: v for k, v in line.items() if (line["kind"], k) != (kind, field)} for line in lines
        ]
        return "".join(json.dumps(line) + "\n" for line in kept).encode()

    return change


FOUND = {
    "a tree that is nested too deeply": ("blob", with_tree("[" * 50_000)),
    "a value without its fields": ("blob", with_tree('{"kind":"Books"}')),
    "a worker's checkpoint without metadata": (
        "worker-checkpoint",
        lambda data: header_of(data, lambda head: {"0": head["0"]}),
    ),
    "a card that names a model by an object": ("model", with_card(model={"a": 1})),
    "metadata of a model that are a number": (
        "model",
        lambda data: header_of(data, lambda head: {**head, "__metadata__": 0.5}),
    ),
    "an event of a worker without its version": ("history", without("published", "version")),
    "an event of a worker without its start": ("history", without("training", "start")),
    "a time that is a text": ("trace", with_line(opened_s="9" * 5000)),
    "a time before the start": ("trace", with_line(duration_s=-1.0)),
    "a header of an array that no Python parser ends": (
        "npz",
        with_member("x_train.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': ('<f8',"),
    ),
    "an array under a name that no check knew": ("npz", with_member("x_train", b"\0" * 100)),
    "a sample with five thousand digits": (
        "assignment",
        lambda data: json.dumps({"0": ["9" * 5000], "1": [1], "2": [2]}).encode(),
    ),
    "a long cell among short ones": (
        "csv",
        lambda data: b"a,b\n" + b"1,2\n" * 4000 + b"x" * 130_000 + b",2\n",
    ),
    "a request of an unknown version": (
        "enrol",
        lambda data: data.replace(b"REQUEST-----\\nMI", b"REQUEST-----\\nMA", 1),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_found_inputs_are_refused(what, tmp_path):
    name, change = FOUND[what]
    target = make_target(name, tmp_path)
    data = target.mend(change(target.seeds[0]))
    with pytest.raises(target.refusals):
        target.read(data)


# The engine -------------------------------------------------------------------------------------


def fragile(name, folder):
    """A parser that does not expect a certain byte, and one that takes a lot of memory."""
    del folder

    def read(data):
        if b"\xff" in data:
            raise IndexError("not expected")
        if data.endswith(b"[") and name == "greedy":
            return bytes(1 << 40)
        raise ValueError("refused")

    return Target(name, read, (b"abc",), (ValueError,), of_bytes)


def test_the_same_seed_finds_the_same_input_again(tmp_path):
    inputs, (finding,) = run(fragile("fragile", tmp_path), 3, inputs=2000)
    assert inputs == 2000
    assert b"\xff" in finding.data
    assert "IndexError: not expected" in str(finding)
    assert f"--seed 3 --inputs {finding.number + 1}" in str(finding)
    _, again = run(fragile("fragile", tmp_path), 3, inputs=finding.number + 1)
    assert again == [finding]


def test_memory_is_limited_and_a_child_reports():
    inputs, findings = run_in_child(fragile, "greedy", 0, inputs=3000)
    assert inputs == 3000
    assert {finding.why.split()[-1] for finding in findings} >= {"MemoryError"}


def test_the_input_of_a_crash_is_known():
    def crashing(name, folder):
        import os

        return Target(name, lambda data: os._exit(3) if b"{" in data else None, (b"[1]",), ())

    _, (finding,) = run_in_child(crashing, "crash", 0, inputs=3000)
    assert b"{" in finding.data
    assert "ended" in finding.why


def test_a_mutation_depends_on_the_seed_alone():
    import numpy as np

    text = b'{"a":[1,2,{"b":null}],"c":"x"}'
    made = [of_json(np.random.default_rng(5), text) for _ in range(2)]
    assert made[0] == made[1] != text
