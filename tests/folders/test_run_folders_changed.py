"""Run folders that were changed behind the run's back, and runs whose process is gone."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dystop import storage
from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import RunFolderError
from dystop.folders.run_folder import RunLock, is_abandoned, open_run, update_info
from dystop.format import FORMAT
from dystop.report import write_report
from dystop.report.data.names import run_status
from dystop.report.data.notices import notices
from dystop.runs import run
from dystop.testbed.setup.launch import make_folder, resumable_folder

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

WORDS = [
    "data.name=synthetic",
    "data.options.train=120",
    "data.options.test=40",
    "model.name=softmax",
    "fleet.workers=4",
    "stop.rounds=6",
    "output.checkpoint_every=2",
]


def quiet(_):
    return None


def interrupt(record):
    if record.round == 3:
        raise KeyboardInterrupt


def begun(out: Path, *more: str) -> Path:
    """A run that was interrupted after its third round."""
    with pytest.raises(KeyboardInterrupt):
        run.run_experiment(read_experiment(None, [*WORDS, *more]), out, "one", quiet, interrupt)
    return out / "one"


def ended(out: Path) -> Path:
    return run.run_experiment(read_experiment(None, WORDS), out, "one", quiet, quiet)


def dystop(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


def edit(folder: Path, key: str, value: str) -> bytes:
    """Change a setting in config.toml; returns what was there before."""
    path = folder / "config.toml"
    before = path.read_bytes()
    after, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", before.decode())
    assert (count, after != before.decode()) == (1, True)
    path.write_text(after)
    return before


@pytest.mark.parametrize(
    ("key", "value"), [("learning_rate", "0.5"), ("seed", "7"), ("phi", "0.9")]
)
def test_a_run_is_not_resumed_with_other_settings(tmp_path, key, value):
    folder = begun(tmp_path)
    before = edit(folder, key, value)
    left = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(RunFolderError) as caught:
        run.resume_run(folder, quiet, quiet)
    file = folder / "config.toml"
    assert str(caught.value).startswith(f"{file}: was changed")
    assert str(caught.value).endswith(f"dystop run {file} --name NEW")
    assert {p: p.read_bytes() for p in left} == left  # refused before anything was touched
    (folder / "config.toml").write_bytes(before)
    run.resume_run(folder, quiet, quiet)
    assert open_run(folder).info["status"] == "finished"


def test_more_rounds_are_not_had_by_editing_a_finished_run(tmp_path):
    folder = ended(tmp_path)
    edit(folder, "rounds", "9")
    with pytest.raises(RunFolderError, match=rf"^{folder / 'config.toml'}: was changed"):
        run.resume_run(folder, quiet, quiet)


def test_a_folder_of_another_format_is_refused(tmp_path):
    folder = begun(tmp_path)
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "format": 2}))
    with pytest.raises(RunFolderError, match=rf"run\.json: its format is 2, .* uses {FORMAT}; use"):
        run.resume_run(folder, quiet, quiet)


def test_a_measured_setting_is_noted_as_it_was_written(tmp_path):
    folder = begun(tmp_path, "world.compute.batch_s=measure")
    assert "measure" not in (folder / "config.toml").read_text()
    run.resume_run(folder, quiet, quiet)
    assert open_run(folder).info["status"] == "finished"


def shorten(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"alive":4', b'"alive":3', 1))


def litter(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"round":')


@pytest.mark.parametrize("harm", [shorten, alter, litter, Path.unlink])
def test_a_finished_run_whose_log_was_changed(tmp_path, harm):
    folder = ended(tmp_path)
    assert not any("record log" in sentence for sentence in notices([open_run(folder)]))
    run.resume_run(folder, quiet, quiet)  # nothing to do, and nothing to complain about
    before = (folder / "records.jsonl").read_bytes()
    harm(folder / "records.jsonl")
    warnings = [s for s in notices([open_run(folder)]) if "record log" in s]
    assert len(warnings) == 1
    assert warnings[0].endswith(f"dystop verify {folder}")
    with pytest.raises(RunFolderError) as caught:
        run.resume_run(folder, quiet, quiet)
    assert str(caught.value).startswith(f"{folder / 'records.jsonl'}: ")
    assert str(caught.value).endswith(f"dystop run {folder / 'config.toml'} --name NEW")
    (folder / "records.jsonl").write_bytes(before)
    assert not any("record log" in sentence for sentence in notices([open_run(folder)]))


@pytest.mark.parametrize("harm", [shorten, litter, Path.unlink])
def test_verify_finds_a_changed_log(tmp_path, harm):
    folder = ended(tmp_path)
    assert run.verify_run(folder, None, quiet).identical
    harm(folder / "records.jsonl")
    verdict = run.verify_run(folder, None, quiet)
    assert not verdict.identical
    assert "record log" in verdict.detail
    assert "changed" in verdict.detail


def test_the_commands_refuse_and_warn(tmp_path):
    folder = ended(tmp_path)
    shorten(folder / "records.jsonl")
    refused = dystop("resume", folder)
    assert refused.exit_code == 2
    assert f"{folder / 'records.jsonl'}: " in refused.stderr
    reported = dystop("report", folder)
    assert reported.exit_code == 0
    assert f"dystop verify {folder}" in reported.stderr
    page = next(folder.rglob("*.html")).read_text()
    assert f"dystop verify {folder}" in page
    edit(folder, "seed", "7")
    refused = dystop("resume", folder)
    assert refused.exit_code == 2
    assert f"{folder / 'config.toml'}: was changed" in refused.stderr


def test_a_testbed_resumes_on_another_port_but_not_with_other_settings(tmp_path):
    folder, _ = make_folder(read_experiment(None, WORDS), tmp_path, "one")
    assert resumable_folder(folder) == folder
    before = edit(folder, "learning_rate", "0.5")
    with pytest.raises(RunFolderError, match=r"dystop testbed .*config\.toml --name NEW"):
        resumable_folder(folder)
    (folder / "config.toml").write_bytes(before)
    edit(folder, "port", "5000")
    assert resumable_folder(folder) == folder


KILLED = """
import signal, sys
from pathlib import Path
from dystop.runs import run
from dystop.config import read_experiment

def on_record(record):
    if record.round == 3:
        print("three", flush=True)
        signal.pause()

experiment = read_experiment(None, sys.argv[2:])
run.run_experiment(experiment, Path(sys.argv[1]), "one", lambda started: None, on_record)
"""


def test_a_killed_run_was_interrupted_and_a_running_one_is_running(tmp_path):
    folder = tmp_path / "one"
    words = [sys.executable, "-c", KILLED, str(tmp_path), *WORDS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "three\n"
        try:
            live = open_run(folder)
            assert run_status(live) == "running"
            (notice,) = (s for s in notices([live]) if "running" in s)
            assert notice.startswith("one · dystop ")
        finally:
            process.kill()
    dead = open_run(folder)
    assert dead.info["status"] == "running"  # a killed process cannot note its end
    assert run_status(dead) == "interrupted"
    (notice,) = (s for s in notices([dead]) if "interrupted" in s)
    assert notice.endswith(f"dystop resume {folder}")
    page = write_report([dead], tmp_path / "page", formats=()).html
    assert f"dystop resume {folder}" in page.read_text()
    run.resume_run(folder, quiet, quiet)
    assert run_status(open_run(folder)) == "finished"


def test_a_killed_run_of_the_testbed_is_resumed_by_its_own_command(tmp_path):
    folder = begun(tmp_path)
    update_info(folder, status="running", kind="testbed")
    assert any(f"dystop testbed --resume {folder}" in s for s in notices([open_run(folder)]))


def test_looking_at_a_lock_leaves_no_trace(tmp_path):
    assert not is_abandoned(tmp_path)  # no lock file: nothing is known
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path):
        before = (tmp_path / ".lock").read_bytes()
        assert not is_abandoned(tmp_path)
    assert is_abandoned(tmp_path)
    assert (tmp_path / ".lock").read_bytes() == before
    with RunLock(tmp_path):  # the look is over
        assert not is_abandoned(tmp_path)


def test_a_look_does_not_keep_a_run_from_starting(tmp_path):
    """Somebody holds the shared lock for an instant while the run wants its own."""
    (tmp_path / ".lock").touch()
    fd = os.open(tmp_path / ".lock", os.O_RDONLY)
    storage.fcntl.flock(fd, storage.fcntl.LOCK_SH)
    threading.Thread(target=lambda: (time.sleep(storage._PROBE_S / 5), os.close(fd))).start()
    with RunLock(tmp_path):
        assert not is_abandoned(tmp_path)


def test_where_locks_cannot_be_had_the_run_is_believed(tmp_path, monkeypatch):
    def refuse(fd, how):
        raise OSError(38, "Function not implemented")

    folder = begun(tmp_path)
    update_info(folder, status="running")
    assert run_status(open_run(folder)) == "interrupted"
    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    assert run_status(open_run(folder)) == "running"
