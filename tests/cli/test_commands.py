import html
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.config import to_toml
from dystop.errors import CapacityError, PlanError, StorageError
from dystop.folders.run_folder import RecordLog, create_run, first_info
from dystop.runs.interrupts import Terminated
from support.fake_runs import record_of_round as record

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")


@dataclass
class Started:
    folder: Path
    physics: dict = field(default_factory=lambda: {"mean link rate": "7.1 Mbit/s"})
    partition: list = field(default_factory=lambda: ["labels per worker: 3 to 9"])
    memory: str = "1.2 GB of 8 GB"
    rounds: int = 3
    done: int = 0


@dataclass
class Verdict:
    identical: bool = True
    rounds: int = 3
    sha256: str = "abc"
    detail: str = "round 2: clock_s differs"


class FakeRun(types.ModuleType):
    """Stands in for `dystop.runs.run`: three rounds, no training."""

    def __init__(self):
        super().__init__("dystop.runs.run")
        self.error = None
        self.verdict = Verdict()
        self.seen = []

    def run_experiment(self, experiment, out, name, on_start, on_record):
        self.seen.append(experiment)
        config, info = to_toml(experiment), first_info(experiment)
        folder = create_run(
            out, name or experiment.name, config, info, {}, explicit=name is not None
        )
        return self.resume_run(folder, on_start, on_record)

    def resume_run(self, folder, on_start, on_record):
        on_start(Started(folder))
        with RecordLog(folder, keep=0) as log:
            for t in (1, 2, 3):
                if t == 3 and self.error is not None:
                    raise self.error
                log.append(record(t, accuracy=0.1 * t))
                on_record(record(t, accuracy=0.1 * t))
        return folder

    def verify_run(self, path, rounds, on_record):
        on_record(record(1))
        return self.verdict


@pytest.fixture
def fake(monkeypatch, tmp_path):
    module = FakeRun()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(dystop.runs, "run", module, raising=False)
    monkeypatch.chdir(tmp_path)
    return module


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_run_shows_where_it_is_and_how_it_ended(fake):
    done = call("run", "stop.rounds=3", "--no-report")
    assert done.exit_code == 0
    for text in ("7.1 Mbit/s", "labels per worker", "1.2 GB", "runs/dystop-fmnist-mini-s0"):
        assert text in done.stdout
    assert "round 3/3  clock 4.5 s  loss 0.333  accuracy 30.0%" in done.stdout
    assert "30.0 " in done.stdout
    assert "dystop (paper)" in done.stdout  # provenance wherever a mechanism is named
    assert "\x1b" not in done.stdout
    assert fake.seen[0].stop.rounds == 3


def test_a_file_a_name_and_an_output_folder(fake, tmp_path):
    (tmp_path / "e.toml").write_text("seed = 4\n")
    done = call("run", "e.toml", "stop.rounds=3", "--out", "x", "--name", "mine", "--no-report")
    assert done.exit_code == 0
    assert (fake.seen[0].seed, (tmp_path / "x" / "mine" / "run.json").exists()) == (4, True)
    again = call("run", "--out", "x", "--name", "mine")
    assert again.exit_code == 2
    assert "dystop resume x/mine" in again.stderr
    assert len(fake.seen) == 1


def test_quiet_prints_nothing(fake):
    done = call("run", "--quiet", "--no-report")
    assert (done.exit_code, done.output) == (0, "")


def test_a_report_is_written_at_the_end(fake, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(
        "dystop.report.write_report",
        lambda runs, out, target: (
            seen.append((len(runs), out, target)) or types.SimpleNamespace(html=out / "report.html")
        ),
    )
    folder = Path("runs") / "dystop-fmnist-mini-s0"
    assert f"report: {folder / 'report' / 'report.html'}" in call("run").stdout
    assert call("report", folder, "--target", "0.5").exit_code == 0
    twice = call("report", folder, folder.absolute())
    repeated = [x for x in twice.stderr.splitlines() if x.endswith(f"shown once: {folder}")]
    assert (twice.exit_code, len(repeated)) == (0, 1)
    assert seen == [
        (1, folder / "report", None),
        (1, folder / "report", 0.5),
        (1, folder / "report", None),
    ]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_an_interruption_names_the_command_that_resumes(fake, error, code):
    fake.error = error
    done = call("run")
    assert done.exit_code == code
    assert done.stderr.count("\n") == 1
    assert "round 2" in done.stderr
    assert "dystop resume runs/dystop-fmnist-mini-s0" in done.stderr
    fake.error = None
    resumed = call("resume", "runs/dystop-fmnist-mini-s0", "--no-report")
    assert resumed.exit_code == 0
    assert "round 3/3" in resumed.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [(CapacityError("too big"), 2), (StorageError("full"), 3), (PlanError("bad plan"), 4)],
)
def test_errors_are_one_message_and_their_exit_code(fake, error, code):
    fake.error = error
    done = call("run")
    assert (done.exit_code, done.stderr) == (code, f"Error: {error}\n")


def test_a_refused_file_is_no_bug(fake, monkeypatch):
    fake.error = PermissionError(13, "Permission denied", "some/folder")
    done = call("run")
    assert done.exit_code == 3
    assert done.stderr.startswith("Error: some/folder: Permission denied; check that")
    monkeypatch.setenv("DYSTOP_DEBUG", "1")
    assert "Traceback" in call("run").stderr


def test_a_bug_is_short_unless_asked(fake, monkeypatch):
    fake.error = ZeroDivisionError("oops")
    done = call("run")
    assert done.exit_code == 1
    assert done.stderr.startswith("Unexpected error: ZeroDivisionError: oops\n")
    assert "Traceback" not in done.output
    monkeypatch.setenv("DYSTOP_DEBUG", "1")
    asked = call("run")
    assert (asked.exit_code, "Traceback" in asked.stderr) == (1, True)


def test_verify_agrees_or_exits_with_5(fake):
    call("run", "--no-report")
    folder = "runs/dystop-fmnist-mini-s0"
    same = call("verify", folder)
    assert (same.exit_code, "identical: 3 rounds, sha256 abc" in same.stdout) == (0, True)
    fake.verdict = Verdict(identical=False)
    other = call("verify", folder, "--rounds", "2")
    assert (other.exit_code, "round 2: clock_s differs" in other.stderr) == (5, True)


BAD = {
    "unknown key": (["stop.round=5"], "did you mean 'stop.rounds'?"),
    "last part only": (["rounds=5"], "did you mean 'stop.rounds'?"),
    "wrong type": (["stop.rounds=many"], "an integer >= 1"),
    "negative": (["stop.seconds=-1"], "a number >= 0"),
    "zero workers": (["fleet.workers=0"], "an integer >= 1"),
    "range 0": (["world.range_m=0"], "a number >= 0.001"),
    "accuracy": (["stop.accuracy=1.01"], "<= 1"),
    "missing file": (["none.toml"], "none.toml: no such file"),
    "invalid TOML": (["bad.toml"], "line 2"),
    "mechanism": (["mechanism.name=dystp"], "did you mean 'dystop'?"),
    "model": (["model.name=cn"], "did you mean 'cnn'?"),
    "data set": (["data.name=fmnist-min"], "did you mean 'fmnist-mini'?"),
    "not key=value": (["good.toml", "seed"], "is not key=value"),
    "read-only": (["--out", "bad.toml/runs"], "--out DIR"),
    "name": (["--name", "a/b"], "--name 'a/b'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_writes_nothing(fake, tmp_path, case):
    (tmp_path / "good.toml").write_text("seed = 1\n")
    (tmp_path / "bad.toml").write_text("seed = 1\n[stop\n")
    words, fact = BAD[case]
    done = call("run", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert fact in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["bad.toml", "good.toml"]


def test_a_read_only_file_system_is_one_message(fake, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("dystop.folders.run_folder.tempfile.mkdtemp", refuse)
    done = call("run")
    assert done.exit_code == 3  # as for every refused write
    assert done.stderr.startswith("Error: runs")
    assert "Read-only file system" in done.stderr
    assert done.stderr.endswith("--out DIR\n")


@pytest.mark.parametrize("command", ["resume", "verify", "report"])
def test_folders_that_are_no_runs_are_refused(fake, tmp_path, command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").touch()
    missing = "run.json and fleet.json missing"
    for name, fact in {"none": "no such", "empty": "not a run", "half": missing}.items():
        done = call(command, name)
        assert (done.exit_code, done.stdout) == (2, "")
        assert fact in done.stderr


def test_a_word_that_is_no_comparison_is_called_what_it_is(fake, tmp_path):
    call("run", "--name", "one", "--no-report")
    (tmp_path / "empty").mkdir()
    for words, fact in {
        ("runs/one",): "dystop compare runs/one/config.toml --mechanisms",
        ("nothing/here",): "nothing/here: no such file",
        ("empty",): "FILE.toml or a study",
        (): "dystop compare --mechanisms dystop,fedavg",
    }.items():
        done = call("compare", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert fact in done.stderr


@pytest.mark.parametrize("command", ["resume", "verify"])
def test_a_comparison_is_resumed_by_its_own_command(fake, tmp_path, command):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "study.json").write_text("{}")
    done = call(command, "x")
    assert done.exit_code == 2
    assert re.search("x: .*comparison.*dystop compare x", done.stderr)


def test_lists_name_everything(fake):
    mechanisms = call("list", "mechanisms").stdout
    assert "dystop" in mechanisms
    assert "paper" in mechanisms
    assert "cnn" in call("list", "models").stdout
    assert "fmnist-mini" in call("list", "datasets").stdout
    keys = call("list", "keys").stdout
    assert "stop.rounds" in keys
    assert "world.channel.noise_w" in keys


def test_one_entry_is_described(fake):
    assert "tau_bound" in call("list", "mechanisms", "--describe", "dystop").stdout
    assert "cnn: " in call("list", "models", "--describe", "cnn").stdout
    assert "fmnist-mini: " in call("list", "datasets", "--describe", "fmnist-mini").stdout
    assert "default: 60" in call("list", "keys", "--describe", "stop.rounds").stdout
    wrong = call("list", "mechanisms", "--describe", "dystp")
    assert (wrong.exit_code, "did you mean 'dystop'?" in wrong.stderr) == (2, True)
    assert call("list", "mechanics").exit_code == 2


def test_a_reconstruction_is_called_one():
    from dystop.cli.listing import provenance

    assert "RECONSTRUCTION" in provenance(types.SimpleNamespace(provenance="reconstruction"))


def test_parts_of_ours_stand_behind_the_provenance(tmp_path):
    for words in (["list", "mechanisms", "--json"], ["list", "mechanisms", "matcha"]):
        listed = call(*words)
        assert "authors' code, our base graph and weights" in listed.stdout
    small = [
        "mechanism.name=matcha", "fleet.workers=4", "data.name=synthetic", "model.name=softmax",
        "world.range_m=200", "stop.rounds=2", "evaluate.every_rounds=2",
    ]  # fmt: skip
    for weights, ours in (("nonnegative", "base graph and weights"), ("optimal", "base graph")):
        words = [*small, f"mechanism.weights={weights}"]
        done = call("run", *words, "--out", str(tmp_path), "--name", weights)
        assert done.exit_code == 0, done.output
        assert f"matcha (authors' code, our {ours})" in done.stdout
        assert f"{ours} are ours" in done.stderr
        page = (tmp_path / weights / "report" / "report.html").read_text()
        assert html.unescape(page).count(f"authors' code, our {ours}")
        assert f"{ours} are ours" in html.unescape(page)


def test_the_doctor_looks_at_everything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("doctor")
    assert done.exit_code == 0
    for what in ("python", "torch", "device", "memory", "disk", "data cache", "ready"):
        assert what in done.stdout
    assert os.listdir(tmp_path) == []


def test_the_doctor_does_not_call_data_ok_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("dystop.data.fetch.search_folders", lambda _: [tmp_path])
    done = call("doctor")
    assert (done.exit_code, "ok  fmnist-mini" in done.stdout) == (0, True)
    assert "--  cifar10" in done.stdout


def test_a_missing_library_makes_the_machine_unusable(monkeypatch):
    monkeypatch.setattr("dystop.folders.environment.versions", lambda: {"torch": "missing"})
    done = call("doctor")
    assert (done.exit_code, "BAD torch" in done.stdout) == (2, True)


def test_a_data_folder_that_is_not_there_is_found_out(monkeypatch):
    monkeypatch.setenv("DYSTOP_DATA", "/nowhere/at/all")
    done = call("doctor")
    assert (done.exit_code, "BAD data folders" in done.stdout) == (2, True)


def test_help_teaches_and_says_the_version():
    assert "dystop run mechanism.V=20" in call("--help").stdout
    for command in ("run", "resume", "verify", "report", "list", "doctor"):
        assert f"Examples:\n    dystop {command}" in call(command, "--help").stdout
    assert call("--version").stdout == f"dystop {dystop.__version__}\n"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from dystop.cli import app\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'pydantic', 'networkx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_terminal_gets_a_bar(fake, monkeypatch):
    from dystop.cli import progress

    calls = []

    class Bar:
        def add_task(self, name, total, status):
            return calls.append(("total", total))

        def start(self):
            calls.append("start")

        def stop(self):
            calls.append("stop")

    monkeypatch.setattr(progress, "new_bar", Bar)
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True, raising=False)
    watcher = progress.Watcher()
    with watcher.showing():
        watcher.expect(9)
    assert calls == [("total", 9), "start", "stop"]
