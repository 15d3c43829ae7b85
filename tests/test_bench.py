"""`dystop bench`: that it measures what it says, and says what it measured."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dystop.bench import (
    child,
    clock,
    material,
    mixing,
    plain_loop,
    planner,
    planning,
    processes,
    references,
    suite,
    training,
)
from dystop.bench import settings as bench_settings
from dystop.bench.evaluation import examination
from dystop.bench.machine import cpu_model
from dystop.bench.result import Line, Sweep, number, row, spread
from dystop.bench.settings import Scale, Settings, experiment
from dystop.bench.stopwatch import watched
from dystop.bench.suite import BENCHES, Measured, measure, prepare
from dystop.bench.sweeps import cost_of_models, cost_of_workers
from dystop.bench.table import markdown
from dystop.cli import app, bench_progress
from dystop.cli.bench import What
from dystop.cli.bench_progress import BenchWatcher
from dystop.engine.rounds import begin, simulate
from dystop.errors import DystopError
from dystop.experiments.build import build
from dystop.report.costs import cost_models, cost_workers
from dystop.trainer.memory import MemoryEstimate

CPU = torch.device("cpu")
TINY = Scale(
    images=8,
    test_images=10,
    rounds=2,
    run_test_images=10,
    fleets=(30, 60),
    at_least_s=0.001,
    plain_workers=1,
)


@pytest.fixture
def tiny(tmp_path):
    return Settings(CPU, ("softmax",), TINY, tmp_path, workers=3, repeat=2)


@pytest.fixture
def quick(monkeypatch):
    """`--quick` made quicker still, and no plain loop in processes of its own."""
    monkeypatch.setattr(bench_settings, "QUICK", TINY)
    monkeypatch.setattr(plain_loop, "plain_loop_images_per_s", lambda processes, n, rounds: 100.0)


@pytest.fixture
def planned(monkeypatch):
    """Planning that costs 1 microsecond per worker, and 4 by the twin."""

    def cost(workers, rounds, seed=0, each_s=1e-6):
        s = each_s * workers
        return planning.PlannerCost(workers, 20.0, workers, 9 * workers, s, s, (s,) * rounds, 10**8)

    monkeypatch.setattr(planning, "measure_planner", cost)
    monkeypatch.setattr(planner, "measure_planner", cost)
    monkeypatch.setattr(planner, "reference_planner", lambda *args: cost(*args, each_s=4e-6))


@pytest.fixture
def inline(monkeypatch):
    """Runs that are measured in processes of their own happen here instead."""
    seen = []

    def python(words, more=processes.NOTHING):
        seen.append(dict(more))
        return json.dumps(child.measure(list(words[2:]), time.perf_counter()))

    monkeypatch.setattr(processes, "python", python)
    return seen


def call(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def a_line(**more):
    usual = {"what": "trainer", "name": "cnn", "unit": "images/s", "value": spread([10.0, 30.0])}
    beside = {"reference": "a loop", "reference_value": spread([5.0, 10.0]), "better": "higher"}
    return Line(**{**usual, **beside, **more})


def test_a_ratio_is_taken_repeat_by_repeat():
    line = a_line()
    assert line.ratio.samples == (2.0, 3.0)
    tree = json.loads(json.dumps(line.tree()))
    assert tree["ratio"] == {"min": 2.0, "median": 2.5, "max": 3.0, "samples": [2.0, 3.0]}
    assert tree["value"]["median"] == 20.0
    assert tree["better"] == "higher"


def test_a_row_shows_medians_and_the_range_of_the_ratio():
    assert row(a_line())[2:] == (
        "20.0 images/s",
        "a loop",
        "7.50 images/s",
        "2.50 (2.00 to 3.00)",
    )
    once = a_line(value=spread([1.0]), reference_value=spread([4.0]), unit="1")
    assert row(once)[2:] == ("1.00", "a loop", "4.00", "0.25")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (9.999, "10.00"), (999.6, "1000"), (12345.0, "12,300"), (2.5e7, "25 M")],
)
def test_numbers_have_three_digits_that_matter(value, shown):
    assert number(value) == shown


def test_measures_are_taken_in_turns():
    order = []
    one, two = clock.in_turns([lambda: order.append("a") or 1.0, lambda: order.append("b") or 2], 3)
    assert order == list("ababab")
    assert (one.samples, two.samples) == ((1.0,) * 3, (2.0,) * 3)


def test_a_meter_repeats_short_steps_until_they_last():
    calls = []

    def step():
        calls.append(1)
        time.sleep(0.001)
        return 5.0

    rate = clock.Meter(step, CPU, at_least_s=0.02)()
    assert 100 < rate < 5000
    assert len(calls) > 10


def test_images_are_the_same_at_the_same_seed_and_cover_all_classes(tmp_path):
    (x, y), (again, _) = (material.images((1, 8, 8), 30, 7) for _ in range(2))
    np.testing.assert_array_equal(x, again)
    assert set(y.tolist()) == set(range(10))
    path = material.write_npz(tmp_path / "a.npz", (1, 8, 8), 3, 2)
    before = path.stat().st_mtime_ns
    assert material.write_npz(path, (1, 8, 8), 3, 2).stat().st_mtime_ns == before
    with np.load(path) as file:
        assert file["x_train"].dtype == np.uint8
        assert len(file["y_test"]) == 10  # never fewer than there are classes


def test_the_work_suits_the_model_and_the_device(tiny):
    small = replace(tiny, workers=None).work("cnn")
    assert (small.shape, small.workers, small.batch, small.large_batch) == (
        (1, 28, 28),
        100,
        32,
        3200,
    )
    large = replace(tiny, workers=None).work("resnet18")
    assert (large.shape, large.batch, large.small) == ((3, 32, 32), 64, False)
    on_gpu = replace(tiny, workers=None, device=torch.device("cuda", 0)).work("resnet18")
    assert (on_gpu.workers, on_gpu.large_batch) == (100, 2048)


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_references_leave_torch_as_it_was(tiny, precision):
    threads = torch.get_num_threads()
    bench = references.Bench(CPU, precision=precision, at_least_s=0.001)
    work = tiny.work("softmax")
    assert references.large_batch(bench, work).meter() > 0
    assert references.large_forward(bench, work, 20).meter() > 0
    assert references.plain_loop(bench, work).meter() > 0
    assert torch.get_num_threads() == threads
    assert not torch.backends.cudnn.benchmark


def test_the_twin_of_mixing_mixes_the_same(tiny):
    stage = mixing.pulls(7, seed=1)
    assert len(stage.source) == 7 * 4
    stack = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32))
    ours, plain = mixing.product(stack, stage)(), mixing.twin(stack, stage)()
    np.testing.assert_allclose(ours.numpy(), plain, rtol=1e-5, atol=1e-6)
    assert mixing.moved_bytes(stage, 50) == 4 * 50 * (28 + 7)


def test_an_examination_looks_at_every_image_with_every_model(tiny):
    work = replace(tiny.work("softmax"), test_images=10)
    trainer = build(experiment(tiny, work)).parts.trainer
    assert examination(trainer, 3, 10)() == 30


def test_a_stopwatch_changes_nothing_and_counts(tiny):
    words = ("mechanism.name=dystop", "stop.rounds=3", "evaluate.every_rounds=2")
    parts = build(experiment(tiny, tiny.work("softmax"), *words)).parts
    plain = [record.to_json() for record, _ in simulate(parts, begin(parts))]
    timed, watch = watched(parts)
    assert [record.to_json() for record, _ in simulate(timed, begin(timed))] == plain
    assert len(watch.seconds("evaluation")) == 4  # twice, the workers' models and the global one
    assert all(one > 0 for one in watch.seconds("training"))
    assert timed.trainer.width == parts.trainer.width


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


def test_the_processor_is_named(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast One 3\n")
    assert cpu_model(info) == "Fast One 3"
    assert cpu_model(tmp_path / "missing")


class Silent:
    def __init__(self):
        self.ended = []

    def begins(self, what): ...

    def says(self, status): ...

    def ends(self, what, seconds):
        self.ended.append(what)


def test_one_failure_does_not_spoil_the_rest(tiny, monkeypatch):
    def broken(settings, say):
        yield a_line()
        raise ValueError("this machine cannot")

    monkeypatch.setitem(BENCHES, "trainer", broken)
    monkeypatch.delenv("DYSTOP_DEBUG", raising=False)
    done, watcher = prepare(tiny), Silent()
    measure(done, ["trainer", "mixing"], watcher)
    assert done.failed == {"trainer": "ValueError: this machine cannot"}
    assert [line.what for line in done.lines] == ["trainer", "mixing", "mixing"]
    assert watcher.ended == ["trainer", "mixing"]
    monkeypatch.setenv("DYSTOP_DEBUG", "1")
    with pytest.raises(ValueError, match="cannot"):
        measure(done, ["trainer"], watcher)


def test_every_benchmark_has_a_name_on_the_command_line():
    assert [str(what) for what in What] == list(BENCHES)


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
    *growth, twin, slope = planner.planner_lines(tiny, lambda status: None)
    assert [line.ratio.median for line in growth] == [1.0, 1.0]
    assert growth[1].reference == "2 x a round of 30"
    assert twin.ratio.samples == (0.25, 0.25)
    assert slope.value.median == pytest.approx(1.0)


def test_planning_is_really_measured():
    cost = planner.measure_planner(30, 2)
    assert (cost.workers, cost.active, len(cost.rounds_s)) == (30, 30, 2)


def test_the_command_prints_a_table_and_writes_json(quick, inline, planned, tmp_path):
    file = tmp_path / "bench.json"
    words = ("--quick", "--model", "softmax", "--workers", 3, "--repeat", 1, "--json", file)
    done = call("trainer", "planner", "mixing", "evaluation", "run", "memory", *words)
    assert done.exit_code == 0, done.output
    for text in ("ratio (min to max)", "one worker after another", "all else", "GB/s"):
        assert text in done.stdout
    assert "measured peak of the process" in done.stdout
    found = json.loads(file.read_text())
    assert list(found) == [
        "format", "date", "seconds", "settings", "machine", "versions", "lines", "sweeps", "failed",
    ]  # fmt: skip
    assert {"cpu", "cores", "memory_bytes", "device"} <= set(found["machine"])
    assert {"dystop", "python", "torch", "numpy", "numba"} <= set(found["versions"])
    assert found["settings"]["models"] == ["softmax"]
    for line in found["lines"]:
        assert set(line["ratio"]) == {"min", "median", "max", "samples"}
        assert line["reference"]
        assert line["ratio"]["min"] > 0


def test_json_on_the_screen_is_nothing_but_json():
    done = call("startup", "--repeat", 1, "--json", "-")
    assert done.exit_code == 0
    (line,) = json.loads(done.stdout)["lines"]
    assert line["reference"] == "python -c pass"
    assert len(line["value"]["samples"]) == 5
    assert line["value"]["min"] > line["reference_value"]["min"]


def test_figures_are_written(quick, tmp_path, monkeypatch):
    curve = [Sweep("one", (1.0, 10.0), (0.1, 1.0), ("a", "b"))]
    monkeypatch.setattr(suite, "cost_of_workers", lambda settings, say: curve)
    monkeypatch.setattr(suite, "cost_of_models", lambda settings, say: curve)
    folder = tmp_path / "new" / "figures"
    done = call("mixing", "--quick", "--model", "softmax", "--plot", folder)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in folder.iterdir()) == ["cost-model.png", "cost-workers.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


def test_a_failed_benchmark_is_told_and_ends_with_1(quick, monkeypatch):
    def broken(settings, say):
        raise ValueError("no such luck")
        yield

    monkeypatch.delenv("DYSTOP_DEBUG", raising=False)
    monkeypatch.setitem(BENCHES, "mixing", broken)
    done = call("mixing", "--quick")
    assert done.exit_code == 1
    assert "mixing could not be measured: ValueError: no such luck" in done.stderr


def test_what_was_measured_before_an_interruption_is_kept(quick, monkeypatch, tmp_path):
    def interrupted(settings, say):
        yield a_line()
        raise KeyboardInterrupt

    monkeypatch.setitem(BENCHES, "mixing", interrupted)
    done = call("mixing", "--quick", "--json", tmp_path / "b.json")
    assert done.exit_code == 130
    assert len(json.loads((tmp_path / "b.json").read_text())["lines"]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trainr",), "'trainr' is not one of"),
        (("--model", "cnm"), "did you mean 'cnn'?"),
        (("--quick", "--full"), "exclude each other"),
        (("--repeat", "0"), "--repeat"),
        (("--workers", "1"), "--workers"),
        (("--device", "gpu"), "'gpu' is not known; allowed: 'auto', 'cpu'"),
        (("--set", "training.batch=none"), "training.batch"),
        (("--set", "nonsense"), "is not key=value"),
        (("--json", "missing/folder/b.json"), "--json missing/folder/b.json; expected a file"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_measured(words, says):
    done = call("startup", *words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "measured in" not in done.stdout


def test_a_file_in_the_way_of_the_figures(tmp_path):
    (tmp_path / "file").write_text("")
    done = call("startup", "--plot", tmp_path / "file")
    assert done.exit_code == 3
    assert "--plot" in done.stderr


def test_help_teaches():
    text = call("--help").stdout
    for word in (*What, "--json", "--plot", "--quick", "Examples:", "dystop bench --quick"):
        assert word in text


class Bar:
    """Stands in for rich's bar."""

    def __init__(self):
        self.seen = []

    def add_task(self, name, **fields):
        return 0

    def update(self, task, **fields):
        self.seen.append(fields)

    def start(self): ...

    def stop(self):
        self.seen.append("stopped")


def test_a_person_sees_a_bar(monkeypatch):
    bar = Bar()
    monkeypatch.setattr(bench_progress, "_new_bar", lambda: bar)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    watcher = BenchWatcher(2, quiet=False)
    with watcher.showing():
        watcher.begins("trainer")
        watcher.says("warm-up")
        watcher.ends("trainer", 1.0)
    assert {"status": "warm-up"} in bar.seen
    assert bar.seen[-2]["completed"] == 1
    assert bar.seen[-1] == "stopped"


def test_measured_can_be_written_at_any_moment(tiny):
    done = Measured(tiny, {"machine": {}, "versions": {}})
    assert json.loads(json.dumps(done.document()))["lines"] == []


def test_a_result_becomes_a_markdown_table(tiny):
    done = prepare(tiny)
    done.lines.append(a_line())
    head, _, *table = markdown(done.document()).splitlines()
    assert "device cpu" in head
    assert table[2] == (
        "| trainer | cnn | 20.0 images/s | a loop | 7.50 images/s | **2.50** | 2.00 to 3.00 |"
    )
