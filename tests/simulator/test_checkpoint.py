"""Checkpoints: exact round trips, atomic files, and damaged files that are skipped."""

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from dystop import rng
from dystop.control.stopping import Stop
from dystop.errors import RunFolderError
from dystop.format import FORMAT
from dystop.mechanisms import DySTop
from dystop.plan import Plan, links, mix_of
from dystop.simulator import checkpoint
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.sparse import ints
from dystop.world import WorldParams
from support.engine_fixtures import DeltaScript, components_for

CPU = torch.device("cpu")


def walk(components, rounds, state=None):
    state = begin(components) if state is None else state
    lines = []
    for record, after in simulate(components, state):
        lines.append(record.to_json())
        state = after
        if len(lines) == rounds:
            break
    return lines, state


def dystop_parts():
    laws = EngineParams(publish="on_completion", timing="overlap")
    return components_for(
        DySTop(estimate="last"), 8, params=WorldParams(), stop=Stop(rounds=12), engine=laws
    )


def test_a_loaded_state_goes_on_exactly(tmp_path):
    whole, _ = walk(dystop_parts(), 12)
    _, state = walk(dystop_parts(), 5)
    checkpoint.save(tmp_path / "c", state)
    found = checkpoint.load_newest(tmp_path / "c", CPU)
    done, loaded = found.round, found.state
    rest, _ = walk(dystop_parts(), 7, loaded)
    assert done == 5
    assert rest == whole[5:]


def test_mail_and_deltas_survive(tmp_path):
    push = Plan(
        ints([2]),
        links(ints([0, 1]), ints([2, 2]), delta=True, pushed=True),
        (mix_of(ints([2]), ints([2]), np.ones(1)),),
    )
    use = Plan(
        ints([0]),
        links(ints([]), ints([])),
        (mix_of(ints([0, 0]), ints([0, 2]), np.ones(2), kind="delta"),),
    )
    components = components_for(DeltaScript(plans=(push, use)), 3, stop=Stop(rounds=2))
    _, state = walk(components, 1)
    checkpoint.save(tmp_path / "c", state)
    loaded = checkpoint.load_newest(tmp_path / "c", CPU).state
    assert len(loaded.models.snapshots) == 1  # one copy for two receivers
    _, end = walk(components, 1, loaded)
    assert float(end.models.latest[0, 0]) == 5.0


def test_only_the_newest_are_kept_and_strays_removed(tmp_path):
    _, state = walk(dystop_parts(), 1)
    for t in range(2, 6):
        checkpoint.save(tmp_path, state._replace(control=replace(state.control, t=t)))
    assert [checkpoint.round_of(p) for p in checkpoint.checkpoints(tmp_path)] == [4, 3]
    (tmp_path / ".round-00000009.safetensors.tmp-1234").write_bytes(b"half")
    (tmp_path / ".tmpAbC123").write_bytes(b"what safetensors had written")
    assert checkpoint.load_newest(tmp_path, CPU).round == 4
    assert not list(tmp_path.glob(".*"))


def two_checkpoints(folder):
    """Save the states after rounds 4 and 8; return the newer file."""
    _, state = walk(dystop_parts(), 1)
    for t in (5, 9):
        newest = checkpoint.save(folder, state._replace(control=replace(state.control, t=t)))
    return newest


def test_a_flipped_bit_anywhere_falls_back_to_the_one_before(tmp_path):
    """Before, a flipped bit of a weight changed results silently."""
    newest = two_checkpoints(tmp_path)
    whole = newest.read_bytes()
    header, draw = int.from_bytes(whole[:8], "little"), rng.stream(1, "flips")
    places = [*range(8), *draw.integers(8, 8 + header, 60), *draw.integers(8, len(whole), 60)]
    for at in map(int, places):
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << int(draw.integers(8))
        newest.write_bytes(spoilt)
        with pytest.warns(UserWarning, match=r"round-00000008.*damaged"):
            assert checkpoint.load_newest(tmp_path, CPU).round == 4, at
    newest.write_bytes(whole)
    assert checkpoint.load_newest(tmp_path, CPU).round == 8


def test_no_length_in_a_damaged_file_is_believed(tmp_path):
    newest = two_checkpoints(tmp_path)
    whole = newest.read_bytes()
    newest.write_bytes((2**40).to_bytes(8, "little") + whole[8:])
    tracemalloc.start()
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoint.load_newest(tmp_path, CPU).round == 4
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_both_damaged_is_an_error(tmp_path):
    two_checkpoints(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        spoilt = bytearray(file.read_bytes())
        spoilt[-1] ^= 1
        file.write_bytes(spoilt)
    with pytest.raises(RunFolderError, match=r"round-00000008.*round-00000004.*delete") as refused:
        checkpoint.load_newest(tmp_path, CPU)
    assert refused.value.exit_code == 2


def test_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    two_checkpoints(tmp_path)
    monkeypatch.undo()
    with pytest.raises(RunFolderError, match=rf"format is 2, .* uses {FORMAT}; use the version"):
        checkpoint.load_newest(tmp_path, CPU)


def test_a_checkpoint_is_flushed_to_the_disk(tmp_path, monkeypatch):
    """safetensors replaces the file that it is given, so the old handle flushes nothing."""
    flushed, fsync = set(), os.fsync

    def noting_fsync(handle):
        flushed.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    assert two_checkpoints(tmp_path).stat().st_ino in flushed


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign", "empty"])
def test_damage_falls_back_to_the_one_before(tmp_path, damage):
    _, state = walk(dystop_parts(), 1)
    checkpoint.save(tmp_path, state._replace(control=replace(state.control, t=5)))
    newest = checkpoint.save(tmp_path, state._replace(control=replace(state.control, t=9)))
    raw = newest.read_bytes()
    bad = {
        "cut": raw[: len(raw) // 2],
        "garbage": b"\xff" * 100,
        "empty": b"",
        "foreign": (2).to_bytes(8, "little") + b"{}",
    }
    newest.write_bytes(bad[damage])
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoint.load_newest(tmp_path, CPU).round == 4


def test_nothing_to_load(tmp_path):
    assert checkpoint.load_newest(tmp_path, CPU) is None


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match="object"):
        checkpoint._pack(object(), "x", {})


def test_a_run_that_goes_on_tests_when_it_is_due(tmp_path):
    _, state = walk(dystop_parts(), 2)
    checkpoint.save(tmp_path / "c", state._replace(next_evaluation_s=7.5))
    assert checkpoint.load_newest(tmp_path / "c", CPU).state.next_evaluation_s == 7.5
