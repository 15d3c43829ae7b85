"""`dystop bench`: that it measures what it says."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench_fixtures import CPU
from dystop.errors import DystopError
from dystop.runs.building import build
from dystop.simulator.round import begin, simulate
from dystop.training.memory import MemoryEstimate
from dystop_benchmarks import child, mixing, planning, processes, references, training, waves
from dystop_benchmarks import settings as bench_settings
from dystop_benchmarks.figures import cost_models, cost_workers
from dystop_benchmarks.scaling import cost_of_models, cost_of_workers
from dystop_benchmarks.settings import experiment
from dystop_benchmarks.stopwatch import with_stopwatch
from dystop_benchmarks.training import evaluation_step


def test_whole_rounds_train_every_worker_on_all_of_its_images(tiny):
    rounds = training.Rounds(tiny, tiny.work("softmax"))
    assert rounds.step() == 3 * 8
    assert rounds.warmup_s > 0
    assert rounds.meter(0.001)() > 0


def test_the_trainer_is_measured_beside_every_reference(tiny, quick):
    lines = list(training.training_lines(replace(tiny, models=("cnn",)), lambda status: None))
    names = [line.reference for line in lines]
    assert names[0].startswith("one model at batch 96, eager")
    assert names[1].startswith("one worker after another, eager")
    assert names[2].startswith("plain loop, ")
    assert lines[2].reference_value.samples == (100.0, 100.0)
    assert all(line.value is lines[0].value for line in lines)
    assert lines[0].detail["parameters"] == 21840


def test_the_reference_is_the_best_way_that_works():
    def broken():
        raise RuntimeError("no compiler\nlong story")

    def lazy():
        time.sleep(0.002)

    ways = [("broken", broken), ("lazy", lambda: lazy), ("fast", lambda: lambda: None)]
    best = references._best(references.Bench(CPU, at_least_s=0.001), iter(ways), 4)
    assert best.name == "fast"
    assert set(best.rates) == {"lazy", "fast"}
    assert best.failed == {"broken": "RuntimeError: no compiler"}
    with pytest.raises(RuntimeError, match="could not be measured"):
        references._best(references.Bench(CPU), iter(ways[:1]), 4)


def test_references_leave_torch_as_it_was(tiny):
    threads = torch.get_num_threads()
    bench = references.Bench(CPU, at_least_s=0.001)
    work = tiny.work("softmax")
    assert references.large_batch(bench, work).meter() > 0
    assert references.large_forward(bench, work, 20).meter() > 0
    assert references.plain_loop(bench, work).meter() > 0
    assert torch.get_num_threads() == threads
    assert not torch.backends.cudnn.benchmark


def test_a_plain_loop_mixes_the_same(tiny):
    stage = mixing.pulls(7, seed=1)
    assert len(stage.source) == 7 * 4
    stack = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32))
    ours, plain = mixing.product(stack, stage)(), mixing.numpy_loop(stack, stage)()
    np.testing.assert_allclose(ours.numpy(), plain, rtol=1e-5, atol=1e-6)
    assert mixing.moved_bytes(stage, 50) == 4 * 50 * (28 + 7)


def test_an_evaluation_step_looks_at_every_image_with_every_model(tiny):
    work = replace(tiny.work("softmax"), test_images=10)
    trainer = build(experiment(tiny, work)).components.trainer
    assert evaluation_step(trainer, 3, 10)() == 30


def test_a_stopwatch_changes_nothing_and_counts(tiny):
    words = ("mechanism.name=dystop", "stop.rounds=3", "evaluate.every_rounds=2")
    parts = build(experiment(tiny, tiny.work("softmax"), *words)).components
    plain = [record.to_json() for record, _ in simulate(parts, begin(parts))]
    timed, watch = with_stopwatch(parts)
    assert [record.to_json() for record, _ in simulate(timed, begin(timed))] == plain
    assert len(watch.seconds("evaluation")) == 4  # twice, the workers' models and the global one
    assert all(one > 0 for one in watch.seconds("training"))
    assert timed.trainer.width == parts.trainer.width


def test_optimisers_are_set_beside_plain_sgd(tiny):
    lines = list(training.optimiser_lines(tiny, lambda status: None))
    assert [(line.name.split(", ")[2], line.reference) for line in lines] == [
        ("momentum 0.9 (fused)", "plain SGD (fused)"),
        ("momentum 0.9", "plain SGD (fused)"),
        ("AdamW (stacked)", "plain SGD (fused)"),
        ("AdamW (stacked)", "plain SGD (stacked)"),
        ("crop and flip (fused)", "plain SGD (fused)"),
    ]
    assert all(line.ratio.median > 0 for line in lines)


def test_optimisers_are_measured_with_every_model(tiny, monkeypatch):
    monkeypatch.setattr(training, "_OPTIMISERS", {"momentum": ("training.momentum=0.9",)})
    asked = replace(tiny, models=("softmax", "mlp"))
    lines = list(training.optimiser_lines(asked, lambda status: None))
    assert [line.name.split(", ")[0] for line in lines] == ["softmax", "mlp"]


def test_waves_are_set_beside_d_psgd_and_decisions_beside_a_small_fleet(tiny, monkeypatch):
    chosen = {name: waves.MECHANISMS[name] for name in ("D-PSGD", "AD-PSGD")}
    monkeypatch.setattr(waves, "MECHANISMS", chosen)
    monkeypatch.setattr(waves, "FREE_RUNNING", ("AD-PSGD",))
    monkeypatch.setattr(waves, "_DECIDING_FLEETS", (5, 10))
    monkeypatch.setattr(waves, "_DECIDED_ROUNDS", 3)
    plain, ahead, after, *deciding = waves.wave_lines(tiny, lambda status: None)
    assert plain.name.startswith("D-PSGD, softmax, 3 x batch 32, one round after another")
    assert ahead.detail["waves"] > 0
    assert sum(ahead.detail["ended_by"].values()) == ahead.detail["waves"]
    assert ahead.detail["trainings"] == ahead.detail["rounds"] > 1  # one worker a round
    assert after.detail["waves"] == 0
    assert {line.reference for line in (plain, ahead, after)} == {"D-PSGD"}
    assert all(line.detail["host_ms_per_round"]["min"] > 0 for line in (plain, ahead, after))
    assert [line.name.split(",")[1] for line in deciding] == [" 5 workers", " 10 workers"]
    assert deciding[0].ratio.median == 1.0


def test_a_child_reports_seconds_bytes_and_the_printed_estimate(tiny, capsys):
    words = bench_settings.experiment_words(tiny, tiny.work("softmax"))
    child.main([*words, "stop.rounds=2"])
    found = json.loads(capsys.readouterr().out)
    parts = found["training_s"] + found["evaluation_s"] + found["other_s"]
    assert parts == pytest.approx(found["rounds_s"])
    assert found["rounds"] == 2
    assert found["peak_bytes"] >= found["before_bytes"] > 10**7
    assert found["estimate_bytes"] > 0
    child.main(["stop.rounds=none"])
    assert "stop.rounds" in json.loads(capsys.readouterr().out)["error"]


def test_the_printed_total_is_read_back():
    estimate = MemoryEstimate((("models", 3 * 2**20), ("data", 2**19)))
    assert child.printed_bytes(estimate.text()) == estimate.total
    assert child.printed_bytes(MemoryEstimate((("models", 17),)).text()) == 17


def test_the_peak_is_the_kernels_own_mark(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t    2068 kB\n")
    assert child.peak_process_bytes(status) == 2068 * 1024
    assert child.peak_process_bytes(tmp_path / "missing") > 10**6


def test_sweeps_go_from_small_to_large_and_are_drawn(tiny, planned):
    workers = cost_of_workers(tiny, lambda status: None)
    models = cost_of_models(tiny, lambda status: None, ("mlp", "softmax"))
    assert workers[0].x == (10.0, 30.0, 60.0)
    assert models[0].notes == ("softmax", "mlp")
    assert all(curve.x == models[0].x for curve in models)
    for plot, curves in ((cost_workers(workers), workers), (cost_models(models), models)):
        assert plot.figure is not None
        axes = plot.figure.axes[0]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert len(axes.lines) == len(curves)
        assert curves[-1].name in plot.alt


def test_a_run_is_split_into_shares_and_may_start_cold(tiny, inline):
    lines = list(processes.run_lines(replace(tiny, starts_cold=True), lambda status: None))
    assert sum(line.ratio.median for line in lines[:3]) == pytest.approx(1.0)
    assert [line.name.partition(": ")[2] for line in lines] == [
        "training",
        "evaluation",
        "all else",
        "with start-up",
        "with start-up",
    ]
    assert [bool(more) for more in inline] == [False, False, True]
    assert "NUMBA_CACHE_DIR" in inline[2]


def test_a_process_of_its_own_is_really_measured(tiny):
    (line,) = processes.memory_lines(tiny, lambda status: None)
    assert line.unit == "MB"
    assert line.reference_value.median > 50  # torch alone takes more
    with pytest.raises(DystopError, match="ended with code 3"):
        processes.python(["-c", "raise SystemExit(3)"])


def test_a_refused_run_says_why(tiny, monkeypatch):
    monkeypatch.setattr(processes, "python", lambda words, more: '{"error": "no room"}')
    with pytest.raises(DystopError, match="was refused: no room"):
        list(processes.memory_lines(tiny, print))


def test_planning_is_set_beside_its_twin_and_its_growth_is_linear(tiny, planned):
    *growth, twin, slope = planning.planner_lines(tiny, lambda status: None)
    assert [line.ratio.median for line in growth] == [1.0, 1.0]
    assert growth[1].reference == "2 x a round of 30"
    assert twin.ratio.samples == (0.25, 0.25)
    assert slope.value.median == pytest.approx(1.0)


def test_planning_is_really_measured():
    cost = planning.measure_planner(30, 2)
    assert (cost.workers, cost.active, len(cost.rounds_s)) == (30, 30, 2)
