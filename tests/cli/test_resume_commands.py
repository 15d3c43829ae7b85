"""Errors name the command that resumes what is there, quoted for a shell."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.cli.run import _resume_hint
from dystop.cli.testbed.launch import _resume_hint as hint_for_testbed
from dystop.config import read_experiment, to_toml
from dystop.errors import ConfigError, RunFolderError, StorageError
from dystop.folders.folder_kinds import (
    COMPARISON,
    RUN,
    SWEEP,
    TESTBED_RUN,
    kind_of,
    writing,
)
from dystop.folders.run_folder import (
    check_free,
    create_run,
    first_info,
    open_run,
    run_folder,
)
from dystop.runs import run
from dystop.studies import gap
from dystop.studies.executors import driver
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.study import Study, create_study, find_study
from dystop.testbed.setup.launch import checked_folder

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

EXPERIMENT = read_experiment()
NAMES = ["simulated", "real", "comparison", "sweep", "plain"]
RESUME_COMMANDS = {
    "simulated": "dystop resume",
    "real": "dystop testbed --resume",
    "comparison": "dystop compare",
    "sweep": "dystop sweep",
}


@pytest.fixture(params=["runs", "my runs"])
def out(tmp_path, request):
    """A folder with one of each kind, under a name that needs no quotes and one that does."""
    folder = tmp_path / request.param
    for name, more in (("simulated", {}), ("real", {"kind": "testbed"})):
        info = {**first_info(EXPERIMENT), **more}
        create_run(folder, name, to_toml(EXPERIMENT), info, {"workers": 3})
    create_study(folder, "comparison", [EXPERIMENT])
    create_study(folder, "sweep", [EXPERIMENT], ["mechanism.V"])
    (folder / "plain").mkdir()
    return folder


def resume_command(name: str, folder: Path) -> str:
    return f"{RESUME_COMMANDS[name]} {shlex.quote(str(folder / name))}"


def message(kind, call, *words) -> str:
    with pytest.raises(kind) as raised:
        call(*words)
    return str(raised.value)


def test_what_a_folder_is(out):
    assert [kind_of(out / name) for name in NAMES] == [RUN, TESTBED_RUN, COMPARISON, SWEEP, None]
    assert kind_of(out / "nothing") is None
    assert kind_of(out / ("x" * 300)) is None
    (out / "sweep" / "study.json").write_text("damaged")
    assert kind_of(out / "sweep") is COMPARISON


@pytest.mark.parametrize("name", RESUME_COMMANDS)
def test_a_taken_name_is_resumed_by_its_own_command(out, name):
    text = message(RunFolderError, check_free, out, name)
    assert text.endswith(resume_command(name, out))
    noun = {"simulated": "run", "real": "testbed run"}.get(name, name)
    assert f"this {noun} " in text


def test_a_name_that_something_else_has_is_not_called_a_run(out):
    for name in ("plain", "file"):
        if name == "file":
            (out / name).touch()
        text = message(RunFolderError, check_free, out, name)
        assert text.startswith(f"{out / name}: ")
        assert "not a run" in text
        assert "--name" in text
        assert "--out" in text


@pytest.mark.parametrize("command", ["run", "testbed"])
def test_the_commands_name_the_resume_command(out, command):
    done = CliRunner().invoke(app, [command, "--out", str(out), "--name", "real"])
    assert done.exit_code == 2
    assert resume_command("real", out) in done.stderr


@pytest.mark.parametrize("name", ["comparison", "sweep"])
def test_a_study_is_no_run(out, name):
    text = message(RunFolderError, run_folder, out / name)
    assert name in text
    assert resume_command(name, out) in text
    text = message(ConfigError, read_experiment, out / name)
    assert f"a {name}" in text
    assert text.endswith(resume_command(name, out))


@pytest.mark.parametrize("name", RESUME_COMMANDS)
def test_a_refused_write_names_the_command_that_fits(out, name):
    def refused():
        with writing(out / name):
            raise PermissionError(13, "no")

    text = message(StorageError, refused)
    assert text.endswith(resume_command(name, out))


def test_every_other_command_to_copy_is_quoted(out):
    quoted = {name: shlex.quote(str(out / name)) for name in RESUME_COMMANDS}
    settings = shlex.quote(str(out / "real" / "config.toml"))
    text = message(ConfigError, read_experiment, out / "real")
    assert f"dystop testbed {settings}," in text
    assert resume_command("real", out) in text
    assert text.endswith(f"dystop check {quoted['real']}")
    text = message(RunFolderError, run._check_simulated, open_run(out / "real"))
    assert f"{resume_command('real', out)}," in text
    assert text.endswith(f"dystop check {quoted['real']}")
    text = message(RunFolderError, checked_folder, out / "simulated")
    assert f"dystop verify {quoted['simulated']}," in text
    assert text.endswith(resume_command("simulated", out))
    (out / "real" / "trace.jsonl").touch()
    assert message(RunFolderError, gap._recorded, out / "real").endswith(
        resume_command("real", out)
    )


def test_studies_quote_theirs(out):
    other = read_experiment(None, ["seed=3"])
    text = message(RunFolderError, find_study, out, "sweep", [other])
    assert text.endswith(resume_command("sweep", out))
    study = Study(out / "sweep", (EXPERIMENT,), ("mechanism.V",))
    assert driver.resume_command(study, LocalExecutor()) == resume_command("sweep", out)


def test_interrupted_runs_quote_theirs(out):
    class Watcher:
        last = None

        def __init__(self, name):
            self.folder = out / name

    assert _resume_hint(Watcher("simulated")).endswith(resume_command("simulated", out))
    assert hint_for_testbed(Watcher("real")).endswith(resume_command("real", out))


def test_a_run_in_a_study_stays_a_run(out):
    create_run(out / "sweep", "x", to_toml(EXPERIMENT), first_info(EXPERIMENT), {"workers": 3})
    assert kind_of(out / "sweep" / "x") is RUN
    assert json.loads((out / "sweep" / "study.json").read_text())["over"] == ["mechanism.V"]
