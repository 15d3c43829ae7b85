"""A study from end to end: folders, going on, several processes, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import DystopError, RunFolderError
from dystop.folders.record_log import RecordTail
from dystop.folders.run_folder import config_facts, update_info
from dystop.format import FORMAT
from dystop.studies.compare import Comparison, experiments
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.study import create_study, finished, open_study, outline
from support.fake_runs import plain_record

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=5", "evaluate.every_rounds=1",
    "output.checkpoint_every=2",
]  # fmt: skip
TWO = ["--mechanisms", "dystop,fedavg", "--seeds", "2"]


def call(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def records(study):
    """Of the runs that are there; one in the making has a hidden folder until it is renamed."""
    return {p.parent.name: p.read_bytes() for p in Path(study).glob("[!.]*/records.jsonl")}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One study, carried out in this process."""
    out = tmp_path_factory.mktemp("runs")
    result = call(*SMALL, *TWO, "--out", out, "--name", "x")
    assert result.exit_code == 0, result.output
    return out / "x", result


def test_folders_study_and_report(done):
    study, result = done
    names = ["dystop-s0", "fedavg-s0", "dystop-s1", "fedavg-s1"]
    rows = json.loads((study / "study.json").read_text())["runs"]
    assert [row["folder"] for row in rows] == names
    assert rows[1] == {
        "folder": "fedavg-s0", "mechanism": "fedavg", "provenance": "reference", "seed": 0,
        "timing": "paper",
    }  # fmt: skip
    assert all(finished(study / name) for name in names)
    assert sorted(os.listdir(study)) == sorted([*names, ".lock", "plan", "report", "study.json"])
    assert (study / "report" / "report.html").is_file()
    assert (study / "report" / "figures" / "accuracy-epochs.pdf").is_file()
    assert "dystop (paper)" in result.stdout
    assert "fedavg (reference)" in result.stdout
    assert f"report: {study}/report/report.html" in result.stdout
    assert "stop.seconds=S" in result.stderr


def test_each_run_is_an_ordinary_run(done):
    study, _ = done
    for command in (["verify"], ["resume", "--no-report"]):
        assert CliRunner().invoke(app, [*command, str(study / "fedavg-s1")]).exit_code == 0


def test_the_same_command_again_computes_nothing(done):
    study, _ = done
    before = {p: p.stat().st_mtime_ns for p in study.glob("*/records.jsonl")}
    for words in ([*SMALL, *TWO, "--out", study.parent, "--name", "x"], [study]):
        again = call(*words, "--target", "0.3")
        assert again.exit_code == 0, again.output
        assert "4 runs, 4 finished before" in again.stdout
        assert "30 %" in again.stdout
    assert before == {p: p.stat().st_mtime_ns for p in study.glob("*/records.jsonl")}


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["stop.rounds=9", *TWO], "stop.rounds is 5 there, 9 here"),
        ([*TWO, "--set", "dystop.V=3"], "dystop-s0: mechanism.V is 10.0 there, 3.0 here"),
        (["--mechanisms", "dystop", "--seeds", "2"], "also has fedavg-s0, fedavg-s1"),
        (["--mechanisms", "dystop,fedavg", "--seeds", "3"], "has no dystop-s2, fedavg-s2"),
    ],
)
def test_other_settings_under_the_same_name_are_refused(done, words, fact):
    study, _ = done
    result = call(*SMALL, *words, "--out", study.parent, "--name", "x")
    assert result.exit_code == 2
    assert fact in result.stderr
    assert "--name or --out" in result.stderr
    assert f"dystop compare {study}" in result.stderr


def test_a_study_has_its_settings_already(done):
    result = call(done[0], "stop.rounds=9")
    assert result.exit_code == 2
    assert f"{done[0]} is a study" in result.stderr
    assert "--target, --jobs, --on, --trust and --quiet" in result.stderr


def test_mistakes_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    for words in (
        ["--mechanisms", "dystpo"],
        [],
        ["--mechanisms", "dystop", "--target", "80"],
        ["--mechanisms", "dystop", "--name", "a/b"],
        ["--mechanisms", "dystop", "--name", "taken", "--out", "."],
        ["--mechanisms", "dystop", "data.name=none.npz"],
        ["--mechanisms", "dystop", *SMALL, "training.memory_limit_gb=0.000001"],
        ["none.toml", "--mechanisms", "dystop"],
    ):
        result = call(*words, "--quiet")
        assert (result.exit_code, result.stdout) == (2, ""), (words, result.output)
        assert result.stderr.startswith("Error: ")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_mechanism_that_refuses_the_fleet_is_found_before_anything_runs(tmp_path, monkeypatch):
    from dystop.mechanisms import FedAvg

    def refuse(self, fleet):
        raise DystopError("not with this fleet")

    monkeypatch.setattr(FedAvg, "init", refuse)
    result = call(*SMALL, *TWO, "--out", tmp_path / "runs")
    assert (result.exit_code, "not with this fleet" in result.stderr) == (1, True)
    assert not (tmp_path / "runs").exists()


class Impatient:
    """Interrupts the third run in its third round."""

    def __init__(self):
        self.runs = []

    def on_wait(self, waiting):
        pass

    def on_start(self, run, rounds):
        self.runs.append(run)

    def on_record(self, run, record):
        if len(self.runs) == 3 and record.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    def on_finish(self, run):
        pass


def test_an_interrupted_study_goes_on_to_the_same_bytes(done, tmp_path):
    every = experiments(Comparison(None, SMALL, ["dystop", "fedavg"], seeds=2))
    study = create_study(tmp_path, "x", every)
    watcher = Impatient()
    with pytest.raises(KeyboardInterrupt):
        run_study(study, LocalExecutor(1), watcher)
    assert [e.name for e in study.todo()] == ["dystop-s1", "fedavg-s1"]
    assert call(study.path, "--quiet").exit_code == 0
    assert records(study.path) == records(done[0])


def test_an_interruption_names_the_command_that_resumes(tmp_path, monkeypatch):
    def interrupt(study, executor, watch):
        raise KeyboardInterrupt

    monkeypatch.setattr("dystop.studies.executors.driver.run_study", interrupt)
    monkeypatch.chdir(tmp_path)
    result = call(*SMALL, *TWO)
    assert result.exit_code == 130
    assert "0 of 4 runs" in result.stderr
    assert "dystop compare runs/compare-synthetic" in result.stderr


def alive(mark: str) -> list[int]:
    """Processes, other than this one, whose command line mentions a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(place.name) != os.getpid():
            found.append(int(place.name))
    return found


def until(condition, seconds=1200.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_several_processes_write_the_same_bytes(done, tmp_path):
    words = ["--mechanisms", "dystop,fedavg", "--seeds", "1", "--jobs", "2"]
    result = call(*SMALL, *words, "--out", tmp_path, "--name", "x")
    assert result.exit_code == 0, result.output
    alone = records(done[0])
    assert records(tmp_path / "x") == {run: alone[run] for run in ("dystop-s0", "fedavg-s0")}
    assert alive(str(tmp_path)) == []


LONG = [*SMALL, "stop.rounds=150", "output.checkpoint_every=5"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_its_parent(tmp_path, number):
    """Ctrl-C or SIGKILL during two simultaneous runs; the study is resumed afterwards."""
    words = ["compare", *LONG, "--mechanisms", "dystop", "--seeds", "2", "--jobs", "2"]
    place = ["--out", str(tmp_path), "--name", "x"]
    with subprocess.Popen(
        [sys.executable, "-m", "dystop", *words, *place],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        until(lambda: any(r.count(b"\n") > 7 for r in records(tmp_path / "x").values()))
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=1200)
    until(lambda: alive(str(tmp_path)) == [])
    study = open_study(tmp_path / "x")
    assert len(study.todo()) == 2
    if number == signal.SIGINT:
        assert parent.returncode == 130
        assert f"dystop compare {tmp_path / 'x'}" in errors
        states = {json.loads(p.read_text())["status"] for p in tmp_path.glob("x/*/run.json")}
        assert states == {"interrupted"}
    before = records(study.path)
    assert call(study.path, "--quiet").exit_code == 0
    for name, lines in records(study.path).items():
        assert lines.startswith(before.get(name, b"").rpartition(b"\n")[0])
        assert lines.count(b"\n") == 150


def test_a_child_that_fails_is_quoted_with_its_exit_code(tmp_path):
    every = experiments(Comparison(None, SMALL, ["dystop"], seeds=2))
    study = create_study(tmp_path, "x", every)
    study.plan(every[1]).write_text("stop.rounds = -1\n")
    with pytest.raises(DystopError, match=r"dystop-s1: .*stop.rounds = -1; expected") as caught:
        run_study(study, LocalExecutor(2), Impatient())
    assert caught.value.exit_code == 2
    assert alive(str(tmp_path)) == []


def test_a_study_is_written_by_one_process_at_a_time(done):
    from dystop.folders.run_folder import RunLock

    with RunLock(done[0]):
        result = call(done[0])
    assert result.exit_code == 2
    assert f"{done[0]}: process {os.getpid()} " in result.stderr


def test_damaged_studies_are_named(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"study\.json: its format is None, .*use the version"):
        open_study(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps({"format": FORMAT}))
    with pytest.raises(RunFolderError, match=r"study\.json: names no runs.*damaged"):
        open_study(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"study\.json"):
        open_study(tmp_path)
    with pytest.raises(RunFolderError, match="not a study"):
        open_study(tmp_path / "none")


@pytest.mark.parametrize("name", ["../secretrun", "/etc", "a/b", ".hidden", ""])
def test_a_study_names_folders_of_its_own_only(done, tmp_path, name):
    study = shutil.copytree(done[0], tmp_path / "x")
    shutil.copytree(done[0] / "dystop-s0", tmp_path / "secretrun")
    content = json.loads((study / "study.json").read_text())
    content["runs"][0]["folder"] = name
    (study / "study.json").write_text(json.dumps(content))
    result = CliRunner().invoke(app, ["export", str(study), "--to", "csv"])
    assert (result.exit_code, (study / "export").exists()) == (2, False)
    assert f"{study / 'study.json'}: {name!r}" in result.stderr


@pytest.mark.parametrize("command", [["report"], ["export", "--to", "csv"], ["compare"]])
def test_a_study_takes_no_other_run_for_a_planned_one(done, tmp_path, command):
    study = shutil.copytree(done[0], tmp_path / "x")
    file = study / "dystop-s0" / "config.toml"
    changed = re.sub(r"(?m)^V = .*$", "V = 50.0", file.read_text())
    assert changed != file.read_text()
    file.write_text(changed)
    update_info(file.parent, **config_facts(changed))  # as a run with this V has it
    word, *more = command
    result = CliRunner().invoke(app, [word, str(study), *more])
    assert result.exit_code == 2
    assert f"{file.parent}: " in result.stderr
    assert "mechanism.V is 50.0 here, 10.0 in the plan" in result.stderr
    assert f"dystop compare {study}" in result.stderr


def test_a_run_without_its_plan_is_not_believed(done, tmp_path):
    study = shutil.copytree(done[0], tmp_path / "x")
    (study / "plan" / "dystop-s0.toml").unlink()
    with pytest.raises(RunFolderError, match=r"dystop-s0\.toml: missing.*put the file back"):
        outline(study)


def test_a_tail_reads_whole_lines_once(tmp_path):
    path, line = tmp_path / "records.jsonl", plain_record(1, 1.0).to_json()
    tail = RecordTail(path)
    assert tail.read() == []
    path.write_text(f"{line}\n{line[:9]}")
    assert [r.round for r in tail.read()] == [1]
    assert tail.read() == []
    path.write_text(f"{line}\n{line}\n")
    assert [r.round for r in tail.read()] == [1]
    path.write_text("")
    assert tail.read() == []


def test_a_terminal_gets_a_bar_for_the_study_and_one_per_run(monkeypatch):
    from dystop.cli import progress

    calls = []

    class Bar:
        def add_task(self, name, **how):
            calls.append(("add", name, how["total"]))
            return name

        def update(self, task, **how):
            calls.append(("update", task, how["completed"]))

        def remove_task(self, task):
            calls.append(("remove", task))

        def start(self):
            pass

        stop = start

    monkeypatch.setattr(progress, "new_bar", Bar)
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True, raising=False)
    watcher = progress.StudyWatcher(4, 1)
    with watcher.showing():
        watcher.on_start("a-s0", 9)
        watcher.on_record("a-s0", plain_record(1, 1.0))
        watcher.on_finish("a-s0")
    assert calls == [
        ("add", "study", 4), ("add", "a-s0", 9), ("update", "a-s0", 1), ("remove", "a-s0"),
        ("update", "study", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["plan", "run"])
def test_a_configuration_of_gigabytes_is_not_read(tmp_path, where):
    (experiment,) = [read_experiment(None, ["name=one"])]
    study = create_study(tmp_path, "study", [experiment])
    config = study.folder(experiment) / "config.toml"
    config.parent.mkdir()
    config.write_bytes(study.plan(experiment).read_bytes())
    huge = study.plan(experiment) if where == "plan" else config
    with huge.open("ab") as file:
        file.truncate(1 << 43)  # a hole
    with pytest.raises(RunFolderError, match=f"{huge.name}.*bytes"):
        outline(study.path)
