"""`dystop bench` on the command line: that it says what it measured."""

import json

import pytest

from bench_fixtures import a_line, call
from dystop_benchmarks import command, suite
from dystop_benchmarks.command import BenchWatcher, What
from dystop_benchmarks.result import Sweep
from dystop_benchmarks.suite import BENCHES


def test_every_benchmark_has_a_name_on_the_command_line():
    assert [str(what) for what in What] == list(BENCHES)


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
    monkeypatch.setattr(command, "new_bar", lambda: bar)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    watcher = BenchWatcher(2, quiet=False)
    with watcher.showing():
        watcher.begins("trainer")
        watcher.says("warm-up")
        watcher.ends("trainer", 1.0)
    assert {"status": "warm-up"} in bar.seen
    assert bar.seen[-2]["completed"] == 1
    assert bar.seen[-1] == "stopped"
