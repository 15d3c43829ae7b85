"""`mechanism.name = "package.module:Class"`: a mechanism of the user, without a plug-in."""

import itertools
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.config import read_experiment, to_toml
from dystop.folders.run_folder import open_run
from dystop.folders.trust import trusting

SMALL = [
    "fleet.workers=3",
    "data.name=synthetic",
    "data.options.train=60",
    "data.options.test=30",
    "model.name=softmax",
    "stop.rounds=2",
]
NUMBERS = itertools.count()
CODE = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Le

import dystop


@dataclass(frozen=True)
class Mine(dystop.Mechanism):
    name: ClassVar[str] = "{name}"
    provenance: ClassVar[str] = "example"
    summary: ClassVar[str] = "everybody trains alone"

    share: Annotated[float, Gt(0), Le(1)] = dystop.param(0.5, "share of the workers that wake up")

    def plan(self, memory, view):
        active = np.flatnonzero(view.alive)[: int(np.ceil(self.share * view.fleet.workers))]
        none = np.zeros(0, np.int64)
        rows = dystop.size_weights(active, none, none, view.fleet.data_size)
        return dystop.Plan(active, dystop.links(none, none), (rows,)), memory


class NoMechanism:
    pass


class NoDataclass(dystop.Mechanism):
    name, provenance, summary = "{name}-2", "example", "it"
    share: float = dystop.param(0.5, "share")


class Nameless(dystop.Mechanism):
    pass


class BadName(Mine):
    name = "my idea"


class Taken(Mine):
    name = "dystop"


@dataclass(frozen=True, kw_only=True)
class Needy(Mine):
    name = "{name}-3"
    more: float


class Failing(Mine):
    name = "{name}-4"

    def __init__(self):
        1 / 0


def factory():
    return Mine()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A user with a state folder and a working folder of his own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def write(folder: Path) -> tuple[str, str]:
    """Write a module with mechanisms; return its import path and the name of its mechanism."""
    number = next(NUMBERS)
    module, name = f"mechanism_of_mine_{number}", f"mine-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(CODE.format(name=name))
    return f"{module}:Mine", name


@pytest.fixture
def mine(here):
    return write(here)


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def succeed(*words):
    done = call(*words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("placeholder_figure_files")
def test_a_class_in_the_current_folder_runs_is_verified_and_resumed(mine, here, tmp_path):
    path, name = mine
    words = [f"mechanism.name={path}", "mechanism.share=1", *SMALL]
    succeed("run", *words, "--name", "it")
    run = open_run(Path("runs/it"))
    assert run.config["mechanism"] == {"name": path, "folder": str(here), "share": 1.0}
    assert (run.info["mechanism"]["name"], run.info["mechanism"]["parameters"]) == (
        name,
        {"share": 1.0},
    )
    assert [record.active for record in run.records] == [3, 3]
    assert name in (Path("runs/it") / "report/report.html").read_text()
    sys.modules.pop(path.partition(":")[0])
    for command in ("verify", "resume"):
        succeed(command, here / "runs/it")
    for command in ("check", "report", "animate"):
        assert "bug in dystop" not in call(command, here / "runs/it").output


def test_a_configuration_is_read_as_it_is_written(mine, here):
    path, _ = mine
    experiment = read_experiment(None, [f"mechanism.name={path}", "mechanism.share=0.25", *SMALL])
    Path("again.toml").write_text(to_toml(experiment))
    assert read_experiment(Path("again.toml")) == experiment


def test_parameters_are_checked_as_those_of_a_built_in_mechanism(mine):
    path, _ = mine
    for word, facts in {
        "mechanism.share=2": ("mechanism.share = 2", "<= 1", "share of the workers"),
        "mechanism.shore=1": ("'mechanism.shore'", "mechanism.share"),
        "mechanism.V=1": ("mechanism.V is not used",),
    }.items():
        done = call("run", f"mechanism.name={path}", word, *SMALL)
        assert done.exit_code == 2, done.output
        assert all(fact in done.output for fact in facts), done.output


BROKEN = {
    "no_such_module:Mine": (2, "no_such_module", "cannot be imported", "PYTHONPATH"),
    "{module}:Nobody": (2, "no callable 'Nobody'", "dystop.Mechanism"),
    "{module}:NoMechanism": (2, "not a subclass of dystop.Mechanism"),
    "{module}:factory": (2, "not a subclass of dystop.Mechanism"),
    "{module}:NoDataclass": (2, "@dataclass(frozen=True)"),
    "{module}:Nameless": (2, "class variable `name`"),
    "{module}:BadName": (2, "'my idea'", "letters, digits"),
    "{module}:Taken": (2, "'dystop'", "`name`"),
    "{module}:Needy": (2, "more", "default"),
    "{module}:Failing": (4, "{module}.py:", "ZeroDivisionError"),
}


@pytest.mark.parametrize("path", BROKEN)
def test_an_error_names_what_is_wrong_with_the_class(path, mine):
    module = mine[0].partition(":")[0]
    code, *facts = BROKEN[path]
    done = call("run", f"mechanism.name={path.format(module=module)}", *SMALL)
    assert done.exit_code == code, done.output
    text = " ".join(done.output.split())
    assert all(fact.format(module=module) in text for fact in facts), text
    assert "bug in dystop" not in text
    assert not Path("runs").exists()


def test_two_classes_of_one_name_are_refused(mine, here):
    path, name = mine
    twin = here / "twin_of_mine.py"
    twin.write_text(CODE.format(name=name))
    done = call("compare", "--mechanisms", f"{path},twin_of_mine:Mine", *SMALL)
    assert done.exit_code == 2
    assert all(fact in done.output for fact in (path, "twin_of_mine:Mine", name))


@pytest.mark.usefixtures("placeholder_figure_files")
def test_a_comparison_and_a_sweep_take_import_paths(mine):
    path, name = mine
    words = [*SMALL, "--seeds", "1", "--name", "c", "--set", f"{name}.share=1"]
    succeed("compare", "--mechanisms", f"dystop,{path}", *words)
    study = json.loads(Path("runs/c/study.json").read_text())
    assert [row["mechanism"] for row in study["runs"]] == ["dystop", name]
    assert open_run(Path("runs/c") / f"{name}-s0").config["mechanism"]["share"] == 1.0
    report = Path("runs/c/report/report.html").read_text()
    assert f">{name}" in report
    succeed("compare", "runs/c")
    succeed("sweep", "--over", f"mechanism.name=dystop,{path}", *SMALL, "--name", "s")
    names = {
        open_run(f.parent).info["mechanism"]["name"] for f in Path("runs/s").glob("*/run.json")
    }
    assert names == {"dystop", name}
    report = Path("runs/s/report/report.html").read_text()
    assert name in report
    assert path not in report
    succeed("export", "runs/s", "--to", "csv", "--out", "tables")
    rounds = Path("tables/rounds.csv")
    assert f",{name}," in rounds.read_text()
    succeed("sweep", "--over", "mechanism.share=0.4,1", f"mechanism.name={path}", *SMALL)


def test_a_comparison_takes_the_mechanism_that_its_file_names(tmp_path):
    path, name = write(tmp_path / "project")
    file = tmp_path / "project" / "mine.toml"
    file.write_text(f'[mechanism]\nname = "{path}"\nshare = 1.0\n')
    words = [*SMALL, "--seeds", "1", "--name", "c"]
    succeed("compare", file, "--mechanisms", f"dystop,{path}", *words)
    kept = open_run(Path("runs/c") / f"{name}-s0").config["mechanism"]
    assert kept == {"name": path, "folder": str(tmp_path / "project"), "share": 1.0}


def test_python_takes_an_import_path(mine):
    path, name = mine
    shared = {"workers": 3, "dataset": "synthetic", "model": "softmax", "rounds": 1}
    run = dystop.simulate(path, overrides=["mechanism.share=1"], **shared).run()
    assert run.config["mechanism"]["share"] == 1.0
    assert run.name.startswith(name)
    assert list(dystop.compare([path, "d-psgd"], **shared).runs) == [path, "d-psgd"]
    with pytest.raises(dystop.ConfigError, match="no_such"):
        dystop.simulate("no_such:Mine", **shared)
    with pytest.raises(dystop.ConfigError, match="module:Class"):
        dystop.simulate("no-such", **shared)


def test_the_list_describes_it(mine):
    path, name = mine
    text = succeed("list", "mechanisms", path)
    assert all(fact in text for fact in (name, "mechanism.share", f"mechanism.name={path}"))
    assert "package.module:Class" in succeed("list", "mechanisms")


@pytest.mark.parametrize("transport", ["memory", "grpc"])
def test_a_testbed_runs_it_and_its_trace_is_replayed(mine, transport):
    path, name = mine
    words = [f"mechanism.name={path}", "mechanism.share=1", *SMALL, "testbed.time_scale=0.01"]
    succeed("testbed", *words, "--transport", transport, "--name", "it", "--no-report")
    run = open_run(Path("runs/it"))
    assert (run.info["status"], run.info["mechanism"]["name"]) == ("finished", name)
    succeed("testbed", "--resume", "runs/it", "--no-report")
    succeed("check", "runs/it")
    succeed("run", "trace=runs/it", "--name", "again", "--no-report")
    assert open_run(Path("runs/again")).config["mechanism"]["name"] == path
    succeed("gap", "runs/it")


def test_a_word_drops_the_folder_that_a_foreign_file_gives(mine, here, tmp_path):
    path, name = mine
    trap, theirs = tmp_path / "trap", tmp_path / "theirs"
    trap.mkdir()
    (trap / f"{path.partition(':')[0]}.py").write_text("raise RuntimeError('foreign code')")
    theirs.mkdir()
    (theirs / "run.json").write_text("{}")
    file = theirs / "config.toml"
    file.write_text(f'[mechanism]\nname = "their:Class"\nfolder = "{trap}"\n')
    assert read_experiment(file, [f"mechanism.name={path}"]).mechanism.name == name
    with pytest.raises(dystop.TrustError, match=r"mechanism\.name"):
        read_experiment(file)
    file.write_text(f'[mechanism]\nname = "{path}"\nfolder = "{here}"\n')
    sys.modules.pop(path.partition(":")[0])
    assert read_experiment(file, imports=False).mechanism.name == "dystop"
    assert path.partition(":")[0] not in sys.modules
    with trusting():
        assert read_experiment(file).mechanism.name == name
