"""Code that a run folder of somebody else names is imported only after a yes."""

import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.cli.progress import StudyWatcher
from dystop.config import read_experiment
from dystop.errors import TrustError
from dystop.folders.trust import trusting
from dystop.runs.run import run_experiment
from dystop.studies.executors.choice import Choice, choose, remember
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.study import create_study, open_study
from dystop.testbed.setup.coordinator_run import open_coordinator_run

SMALL = [
    "fleet.workers=3",
    "data.name=synthetic",
    "data.options.train=60",
    "data.options.test=30",
    "stop.rounds=2",
]
CODE = """
from pathlib import Path
from torch import nn

Path({marker!r}).touch()

def make(channels, size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], classes))
"""
NUMBERS = itertools.count()


class Module:
    """A module in a folder; `imported` tells whether somebody imported it."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.name = name or f"their_code_{next(NUMBERS)}"
        self.folder, self.marker = folder, folder / f"{self.name}.imported"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.py").write_text(CODE.format(marker=str(self.marker)))

    @property
    def model(self) -> str:
        return f"{self.name}:make"

    def imported(self) -> bool:
        """Whether it was imported since the last call."""
        sys.modules.pop(self.name, None)
        found = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return found


@pytest.fixture(autouse=True)
def me(tmp_path, monkeypatch):
    """A user with a state folder and a working folder of his own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "me"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return monkeypatch


def become_somebody_else(me, tmp_path):
    me.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def leave(module: Module, *words: str) -> Path:
    """Run one experiment with this model in the current folder; return its run folder."""
    done = call("run", f"model.name={module.model}", *SMALL, *words, "--name", "it", "--no-report")
    assert done.exit_code == 0, done.output
    assert module.imported()
    return Path("runs/it").absolute()


def foreign_config(folder: Path, section: str, /, **values: object) -> None:
    """Let the configuration of a folder have these values in a section."""
    lines = "".join(f'{key} = "{value}"\n' for key, value in values.items())
    for file in [folder / "config.toml", *folder.glob("plan/*.toml")]:
        if file.is_file():
            head, header, table = file.read_text().partition(f"\n[{section}]\n")
            table = re.sub(rf"(?m)^({'|'.join(values)}) = .*\n", "", table, count=len(values))
            file.write_text(f"{head}\n[{section}]\n{lines}{table if header else ''}")
    noted_as_it_is(folder)


def noted_as_it_is(folder: Path) -> None:
    """Let `run.json` say that the configuration is the one that the run began with."""
    if (folder / "run.json").is_file():
        info = json.loads((folder / "run.json").read_text())
        digest = hashlib.sha256((folder / "config.toml").read_bytes()).hexdigest()
        noted = {**info, "config_sha256": digest}
        noted |= {"status": "finished"} if folder.name == "testbed" else {}
        (folder / "run.json").write_text(json.dumps(noted))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """An interrupted run, a finished testbed run and a study."""
    theirs = tmp_path_factory.mktemp("theirs")

    def interrupt(record):
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        experiment = read_experiment(None, SMALL)
        run_experiment(experiment, theirs, "interrupted", lambda _: None, interrupt)
    fast = ("testbed.time_scale=0.05", "--transport", "memory", "--no-report", "--quiet")
    done = call("testbed", *SMALL, *fast, "--out", theirs, "--name", "testbed")
    assert done.exit_code == 0, done.output
    create_study(theirs, "study", [read_experiment(None, SMALL)])
    return theirs


@pytest.fixture
def theirs(stored, tmp_path):
    """Folders of somebody else."""
    home = Path(shutil.copytree(stored, tmp_path / "theirs"))
    return {"run": home / "interrupted", "testbed": home / "testbed", "study": home / "study"}


@pytest.fixture(params=["model", "task", "mechanism"])
def section(request):
    return request.param


@pytest.fixture
def folders(theirs, section):
    """Folders of somebody else that name code, and this code in the current folder."""
    module = Module(Path.cwd())
    for folder in theirs.values():
        foreign_config(folder, section, name=module.model)
    return theirs, module


COMMANDS = [
    ("verify", "{run}"),
    ("resume", "{run}"),
    ("report", "{run}"),
    ("animate", "{run}"),
    ("data", "partition", "{run}"),
    ("run", "{run}/config.toml"),
    ("compare", "{run}/config.toml", "--mechanisms", "dystop,fedavg"),
    ("sweep", "{run}/config.toml", "--over", "mechanism.V=1,2"),
    ("run", "trace={testbed}"),
    ("sweep", "--over", "trace={testbed},runs/other"),
    ("gap", "{testbed}"),
    ("check", "{testbed}"),
    ("testbed", "--resume", "{testbed}"),
    ("testbed", "{testbed}/config.toml"),
    ("worker", "{testbed}/config.toml", "--name", "w00", "--coordinator", "127.0.0.1:1"),
    ("observer", "{testbed}/config.toml", "--coordinator", "127.0.0.1:1"),
    ("compare", "{study}"),
    ("run", "{study}/plan/dystop-synthetic-s0.toml"),
]
READERS = {"report", "check", "animate", "data"}  # they import nothing at all


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_imports_code_that_a_foreign_folder_names(words, folders, section):
    found, module = folders
    done = call(*(word.format(**found) for word in words))
    assert not module.imported()
    if words[0] not in READERS:
        assert done.exit_code == 2, done.output
        assert module.model in done.output
        assert "--trust" in done.output
        assert f".toml: {section}.name" in done.output


def test_the_python_api_imports_no_code_that_a_foreign_folder_names(folders, section):
    found, module = folders
    refused = pytest.raises(dystop.TrustError, match=r"trust=True")
    with nullcontext() if section == "mechanism" else refused:  # the argument replaces it
        dystop.simulate(overrides=[f"trace={found['testbed']}"])
    with pytest.raises(dystop.TrustError):
        open_coordinator_run(found["testbed"] / "config.toml", found["testbed"])
    dystop.load_run(found["run"])
    assert not module.imported()


@pytest.mark.parametrize("section", ["mechanism"], indirect=True)
def test_a_coordinator_imports_no_mechanism_that_only_its_folder_names(folders, tmp_path):
    found, module = folders
    file = tmp_path / "mine.toml"
    file.write_text("[fleet]\nworkers = 3\n")
    with pytest.raises(dystop.ConfigError, match="not the settings"):
        open_coordinator_run(file, found["testbed"])
    assert not module.imported()


@pytest.mark.parametrize("section", ["model"], indirect=True)
def test_a_yes_imports_what_can_be_imported_and_never_from_the_current_folder(folders, me):
    found, module = folders
    done = call("run", found["study"] / "plan/dystop-synthetic-s0.toml", "--trust", "--name", "x")
    assert (done.exit_code, module.imported()) == (2, False)
    assert "PYTHONPATH" in done.output
    me.syspath_prepend(Path.cwd())
    with trusting():
        study = open_study(found["study"])
    run_study(
        study, LocalExecutor(2), listener=StudyWatcher(1, 0, quiet=True)
    )  # in a child process
    assert not study.todo()
    assert module.imported()


@pytest.mark.parametrize("section", ["model"], indirect=True)
@pytest.mark.parametrize("words", [("stop.rounds=2", "--name", "x"), ("stop.rounds=-1",)])
def test_a_yes_holds_for_one_command(folders, me, words):
    found, module = folders
    me.syspath_prepend(Path.cwd())
    plan = found["study"] / "plan/dystop-synthetic-s0.toml"
    agreed = call("run", plan, "--trust", "--no-report", *words)
    assert (agreed.exit_code, module.imported()) == ((0, True) if len(words) > 1 else (2, False))
    done = call("run", plan, "--no-report", "--name", "y")
    assert (done.exit_code, "--trust" in done.output, module.imported()) == (2, True, False)


@pytest.mark.parametrize("section", ["model"], indirect=True)
def test_a_yes_in_python_holds_for_its_block_and_for_no_thread(folders):
    config = folders[0]["run"] / "config.toml"
    with trusting(), ThreadPoolExecutor(1) as pool:
        read_experiment(config)
        with trusting(False), pytest.raises(TrustError):
            read_experiment(config)
        with pytest.raises(TrustError):
            pool.submit(read_experiment, config).result()
    with pytest.raises(TrustError):
        read_experiment(config)


LOADED = [("model", key) for key in ("folder", "python", "base")]


@pytest.mark.parametrize(("section", "key"), [*LOADED, ("task", "folder"), ("mechanism", "folder")])
def test_what_decides_which_code_is_loaded_counts_as_code(section, key, theirs):
    foreign_config(theirs["run"], section, **{key: "/theirs"})
    done = call("resume", theirs["run"])
    assert done.exit_code == 2, done.output
    assert f"{section}.{key} = '/theirs'" in done.output
    assert "--trust" in done.output


@pytest.mark.parametrize("trust", [(), ("--trust",)], ids=["", "--trust"])
def test_a_word_that_replaces_a_name_drops_the_folder_of_the_foreign_file(theirs, tmp_path, trust):
    mine = Module(Path.cwd())
    trap = Module(tmp_path / "trap", mine.name)
    plan = theirs["study"] / "plan/dystop-synthetic-s0.toml"
    foreign_config(theirs["study"], "model", name="x:y", folder=trap.folder, base="/x", python="/x")
    done = call("run", plan, f"model.name={mine.model}", *trust, "--name", "it", "--no-report")
    assert done.exit_code == 0, done.output
    assert (mine.imported(), trap.imported()) == (True, False)
    kept = read_experiment(Path("runs/it/config.toml")).model
    assert (kept.folder, kept.python, kept.base) == (str(Path.cwd()), "", "")


def test_a_word_that_names_a_flower_app_does_not_run_the_python_of_a_foreign_file(theirs, tmp_path):
    marker, python = tmp_path / "was.run", tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {marker}\n")
    python.chmod(0o755)
    plan = theirs["study"] / "plan/dystop-synthetic-s0.toml"
    foreign_config(theirs["study"], "model", python=str(python))
    call("run", plan, "model.name=flower:no_such_app:app", "--name", "it", "--no-report")
    assert not marker.exists()


def test_a_word_keeps_what_ones_own_file_says(tmp_path):
    project = tmp_path / "project"
    module = Module(project / "code")
    file = project / "mine.toml"
    file.write_text('[model]\nname = "other:make"\nfolder = "code"\n')
    done = call("run", file, f"model.name={module.model}", *SMALL, "--name", "it", "--no-report")
    assert done.exit_code == 0, done.output
    assert module.imported()


def test_a_word_names_code_of_the_current_folder_also_beside_a_file_that_names_other_code(tmp_path):
    mine, other = Module(Path.cwd()), Module(tmp_path / "project")
    file = tmp_path / "project" / "mine.toml"
    file.write_text(f'[model]\nname = "{other.model}"\n')
    done = call("run", file, f"model.name={mine.model}", *SMALL, "--name", "it", "--no-report")
    assert done.exit_code == 0, done.output
    assert (mine.imported(), other.imported()) == (True, False)


def test_ones_own_run_is_verified_and_resumed_from_any_folder(tmp_path, me):
    module = Module(Path.cwd())
    folder = leave(module)
    other = tmp_path / "other"
    trap = Module(other, module.name)
    me.chdir(other)
    assert call("verify", folder).exit_code == 0
    assert module.imported()
    assert not trap.imported()


def test_a_signature_is_worth_nothing_to_another_user_or_for_another_text(tmp_path, me):
    module = Module(Path.cwd())
    folder = leave(module)
    assert call("verify", folder).exit_code == 0
    module.imported()
    changed = Path(shutil.copytree(folder, tmp_path / "changed"))
    config = changed / "config.toml"
    config.write_text(config.read_text() + "# another text\n")
    become_somebody_else(me, tmp_path)
    theirs = call("verify", folder)
    leave(Module(Path.cwd()), "seed=1", "--out", "mine")  # somebody has a key of his own
    assert "--trust" in call("verify", folder).output
    me.setenv("XDG_STATE_HOME", str(tmp_path / "me"))
    mine = call("verify", changed)
    for done in (theirs, mine):
        assert (done.exit_code, "--trust" in done.output) == (2, True)
    assert not module.imported()


def test_the_key_is_the_users_alone(tmp_path):
    module = Module(Path.cwd())
    folder = leave(module)
    key = tmp_path / "me" / "dystop" / "run.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_bytes().hex() not in (folder / "run.json").read_text()
    os.chmod(key, 0o644)  # whoever could read it could sign
    assert call("verify", folder).exit_code == 2
    assert not module.imported()


def test_code_comes_from_the_folder_of_the_file_that_names_it(tmp_path):
    module = Module(tmp_path / "project")
    trap = Module(Path.cwd(), module.name)
    file = tmp_path / "project" / "mine.toml"
    file.write_text(f'[model]\nname = "{module.model}"\n')
    done = call("run", file, *SMALL, "--name", "it", "--no-report")
    assert done.exit_code == 0, done.output
    assert (module.imported(), trap.imported()) == (True, False)
    assert call("verify", "runs/it").exit_code == 0
    assert (module.imported(), trap.imported()) == (True, False)


def test_a_run_without_code_needs_no_key(tmp_path):
    done = call("run", "model.name=softmax", *SMALL, "--name", "it", "--no-report")
    assert done.exit_code == 0
    assert not (tmp_path / "me").exists()


# Settings of engines ----------------------------------------------------------------------------


def test_shell_lines_of_somebody_elses_study_do_not_run(me, tmp_path):
    """`slurm.setup` is a list of shell lines, which a study keeps for the next driver."""
    study = tmp_path / "study"
    study.mkdir()
    words = ['slurm.setup=["touch /tmp/x"]', "slurm.partition=gpu"]
    choice = choose("slurm", None, words=words)
    remember(study, choice)
    assert choose("slurm", None, study=study).settings == choice.settings
    assert choose("ray", None, study=study).settings == {}
    become_somebody_else(me, tmp_path)
    with pytest.raises(TrustError, match=r"executors\.json.*--trust"):
        choose("slurm", None, study=study)
    with trusting():
        assert choose("slurm", None, study=study).settings == choice.settings
    mine = Choice("slurm", None, {"partition": "cpu"})
    remember(study, mine)  # what somebody else has left is not signed along with it
    assert choose("slurm", None, study=study).settings == mine.settings


def test_an_engine_named_by_somebody_elses_run_folder_needs_a_yes(me, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text('[slurm]\nsetup = ["touch /tmp/x"]\n')
    assert choose("slurm", None, folder / "config.toml").settings["setup"] == ["touch /tmp/x"]
    (folder / "run.json").write_text("{}")
    with pytest.raises(TrustError, match=r"slurm\.setup"):
        choose("slurm", None, folder / "config.toml")
    with trusting():
        trusted = choose("slurm", None, folder / "config.toml")
    assert trusted.settings["setup"] == ["touch /tmp/x"]
