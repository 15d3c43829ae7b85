"""Checkpoints: exact round trips, atomic files, and damaged files that are skipped."""

import numpy as np
import pytest
import torch

from dystop.control.stopping import Stop
from dystop.mechanisms import DySTop
from dystop.plan import Plan, links, mix_of
from dystop.simulator import checkpoint
from dystop.simulator.loop import begin, simulate
from dystop.simulator.params import EngineParams
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
    done, loaded = checkpoint.load_newest(tmp_path / "c", CPU)
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
    _, loaded = checkpoint.load_newest(tmp_path / "c", CPU)
    assert len(loaded.models.snapshots) == 1  # one copy for two receivers
    _, end = walk(components, 1, loaded)
    assert float(end.models.latest[0, 0]) == 5.0


def test_only_the_newest_are_kept_and_strays_removed(tmp_path):
    _, state = walk(dystop_parts(), 1)
    for t in range(2, 6):
        from dataclasses import replace

        checkpoint.save(tmp_path, replace(state, control=replace(state.control, t=t)))
    assert [checkpoint.round_of(p) for p in checkpoint.checkpoints(tmp_path)] == [4, 3]
    for suffix in ("tmp", "tmp-1234"):  # of release 0.1.0, and of this one
        (tmp_path / f".round-00000009.safetensors.{suffix}").write_bytes(b"half")
    (tmp_path / ".tmpAbC123").write_bytes(b"what safetensors had written")
    assert checkpoint.load_newest(tmp_path, CPU)[0] == 4
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign", "empty"])
def test_damage_falls_back_to_the_one_before(tmp_path, damage):
    from dataclasses import replace

    _, state = walk(dystop_parts(), 1)
    checkpoint.save(tmp_path, replace(state, control=replace(state.control, t=5)))
    newest = checkpoint.save(tmp_path, replace(state, control=replace(state.control, t=9)))
    raw = newest.read_bytes()
    bad = {
        "cut": raw[: len(raw) // 2],
        "garbage": b"\xff" * 100,
        "empty": b"",
        "foreign": (2).to_bytes(8, "little") + b"{}",
    }
    newest.write_bytes(bad[damage])
    assert checkpoint.load_newest(tmp_path, CPU)[0] == 4


def test_nothing_to_load(tmp_path):
    assert checkpoint.load_newest(tmp_path, CPU) is None


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match="object"):
        checkpoint._pack(object(), "x", {})
