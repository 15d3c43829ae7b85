"""Edge cases of the simulator, with worked examples."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dystop.config import read_experiment
from dystop.control.aggregation import renormalise_lost
from dystop.control.stopping import Evaluate, Stop, stop_reason
from dystop.errors import PlanError, RunFolderError
from dystop.folders.run_folder import open_run, update_info
from dystop.mechanisms import BrainTorrent, DySTop
from dystop.plan import Plan, links, mix_of, no_links
from dystop.runs import run
from dystop.simulator import checkpoint
from dystop.simulator.params import EngineParams
from dystop.sparse import graph_of, ints
from dystop.world import Churn, InFlight, Messages
from support import crashing_child
from support.engine_fixtures import (
    STABLE_WORLD,
    DeltaScript,
    Script,
    components_for,
    run_to_end,
    weights,
)

LATE = EngineParams(publish="on_completion")
ALONE = Plan(ints([2]), no_links(), (mix_of(ints([2]), ints([2]), np.ones(1)),))


def half(dst, src):
    return mix_of(ints([dst, dst]), ints([dst, src]), np.full(2, 0.5))


def test_a_run_that_had_reached_its_target_does_not_train_on(tmp_path):
    words = [*crashing_child.CONFIG, "stop.loss=100", "output.checkpoint_every=1"]
    folder = run.run_experiment(
        read_experiment(None, words), tmp_path, "r", lambda _: None, lambda _: None
    )
    before = (folder / "records.jsonl").read_bytes()
    update_info(folder, status="interrupted")  # stopped between the last round and the end
    run.resume_run(folder, lambda _: None, lambda _: None)
    assert (folder / "records.jsonl").read_bytes() == before
    assert open_run(folder).info["stop_reason"] == "target loss reached"
    assert open_run(folder).records[-1].accuracy is not None  # the end is always evaluated


def test_damaged_checkpoints_are_not_taken_for_none(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "round-00000004.safetensors").write_bytes(b"rubbish")
    with pytest.raises(RunFolderError, match="delete"):
        checkpoint.load_newest(folder, torch.device("cpu"))


def test_what_was_sent_later_wins_whenever_it_arrives():
    sent = Messages(
        arrival_s=np.array([5.0, 3.0]),
        dst=ints([0, 0]),
        src=ints([1, 1]),
        version=ints([1, 2]),
        sent=ints([1, 2]),
        snapshot=ints([0, 1]),
        weight=np.full(2, np.nan),
    )
    late_old = InFlight(sent)
    assert late_old.delivered(6.0).messages().sent.tolist() == [2]
    assert late_old.delivered(4.0).delivered(6.0).messages().sent.tolist() == [2]


def test_a_busy_workers_update_is_its_last_finished_one():
    pull = Plan(
        ints([0]),
        links(ints([0]), ints([2]), delta=True),
        (mix_of(ints([0, 0]), ints([0, 2]), np.ones(2), kind="delta"),),
    )
    components = components_for(
        DeltaScript(plans=(ALONE, pull)), 3, stop=Stop(rounds=2), engine=LATE
    )
    _, state = run_to_end(components)
    assert (
        weights(state)[0] == 0 + 1 + 3 + 1
    )  # start, own update, the finished update of 2, training


@pytest.mark.parametrize("kind", ["second stage", "synchronous", "background"])
def test_nobody_hands_out_a_model_that_is_not_finished(kind):
    stage, mixes = (1, (mix_of(ints([0]), ints([0]), np.ones(1)), half(0, 2)))
    if kind != "second stage":
        stage, mixes = 0, (half(0, 2),)
    pull = Plan(
        ints([0]) if kind != "background" else ints([1]),
        links(ints([0]), ints([2]), stage=stage, background=kind == "background"),
        mixes
        if kind != "background"
        else (mix_of(ints([0, 0, 1]), ints([0, 2, 1]), np.array([0.5, 0.5, 1.0])),),
        synchronous=kind == "synchronous",
    )
    rest = Plan(ints([1]), no_links(), (mix_of(ints([1]), ints([1]), np.ones(1)),))
    slow = replace(ALONE, steps=ints([50]))
    script = Script(plans=(slow, pull, rest, rest, rest))
    _, state = run_to_end(components_for(script, 3, stop=Stop(rounds=5), engine=LATE))
    trained = 0 if kind == "background" else 1
    assert weights(state)[0] == (1 + 3) / 2 + trained  # 3 is finished, 6 is not


def test_rows_fed_by_a_background_link_are_plain_pairs():
    three = mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.full(3, 1 / 3))
    wires = links(ints([0, 0]), ints([1, 2]), background=True)
    with pytest.raises(PlanError, match="background link"):
        run_to_end(components_for(Script(plans=(Plan(ints([0]), wires, (three,)),)), 3))


def test_a_row_without_a_self_entry_keeps_its_sum():
    others = mix_of(ints([0, 0, 1, 1]), ints([1, 2, 0, 2]), np.full(4, 0.5))
    mended = renormalise_lost(others, ints([0]), ints([1]), to_self=True)
    sums = np.bincount(mended.row_of, weights=mended.weight)
    assert sums.tolist() == [1.0, 1.0]


def test_notes_are_plain_numbers():
    with pytest.raises(PlanError, match="note 'x'"):
        run_to_end(components_for(Script(plans=(replace(ALONE, notes={"x": float("nan")}),)), 3))


def test_the_end_is_evaluated_and_named_when_nobody_comes_back():
    gone = replace(STABLE_WORLD, churn=Churn(enabled=True, mean_up_s=2.0, mean_down_s=1e6))
    components = components_for(
        DySTop(), 1, params=gone, stop=Stop(rounds=1000, seconds=100.0), evaluate=Evaluate(0, 999)
    )
    records, _ = run_to_end(components)
    assert records[-1].clock_s < 100
    assert records[-1].accuracy is not None
    assert stop_reason(components.stop, records[-1]) == "100 simulated seconds are over"


def test_training_that_a_round_waits_for_is_not_idleness():
    components = components_for(BrainTorrent(variant="original"), 1, stop=Stop(rounds=3))
    records, _ = run_to_end(components)
    assert [r.idle_s for r in records] == [0.0, 0.0, 0.0]


def test_a_joined_training_is_finished_when_the_round_closes():
    components = components_for(
        BrainTorrent(variant="original"), 5, stop=Stop(rounds=100), engine=LATE
    )
    _, state = run_to_end(components)
    assert state.done.all()


def test_passive_mixing_keeps_the_update_of_the_passive():
    pair = Plan(
        ints([0]),
        links(ints([0, 2]), ints([2, 0])),
        (mix_of(ints([0, 0, 2, 2]), ints([0, 2, 0, 2]), np.full(4, 0.5)),),
    )
    components = components_for(DeltaScript(plans=(pair,)), 3, stop=Stop(rounds=1))
    _, state = run_to_end(components)
    update = state.models.latest[2] - state.models.start[2]
    assert float(update[0]) == 3.0


def test_memory_comes_back_from_a_checkpoint_as_it_was():
    memory = {
        "a/b": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "a": {"b": np.array(7), 1: (1, 2.5, None), "1": ["x", True]},
        "graph": graph_of(2, ints([0]), ints([1])),
    }
    tensors = {}
    back = checkpoint._unpack(checkpoint._pack(memory, "m", tensors), tensors, torch.device("cpu"))
    np.testing.assert_array_equal(back["a/b"], memory["a/b"])
    assert back["a"]["b"].shape == ()
    assert back["a"][1] == (1, 2.5, None)
    assert back["a"]["1"] == ["x", True]
    assert back["graph"].row(0).tolist() == [1]


def test_verify_notices_a_log_that_was_cut(tmp_path):
    folder = run.run_experiment(
        read_experiment(None, [*crashing_child.CONFIG, "stop.rounds=4"]),
        tmp_path,
        "r",
        lambda _: None,
        lambda _: None,
    )
    log = folder / "records.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    assert not run.verify_run(folder, None, lambda _: None).identical
