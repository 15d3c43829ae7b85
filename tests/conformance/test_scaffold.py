"""`dystop new mechanism NAME`: the project is installed, listed, run and tested."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.cli.new import project_files, template_values
from dystop.folders.run_folder import open_run

ROOT = Path(__file__).parents[2]
SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=6", "stop.rounds=3"]
QUICK = [*SMALL, "--no-report", "-q"]


def new(*words):
    return CliRunner().invoke(app, ["new", "mechanism", *map(str, words)])


def metadata(site: Path, name: str, points: str) -> None:
    """What an installer leaves behind, without an installer."""
    folder = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text(points)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """(folder, a function that runs a Python module where the project is installed)."""
    work = tmp_path_factory.mktemp("third party")
    assert new("my-idea", "--out", work).exit_code == 0
    folder, site = work / "my-idea", work / "site"
    declared = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((group, point),) = declared["entry-points"].items()
    ((name, place),) = point.items()
    metadata(site, declared["name"], f"[{group}]\n{name} = {place}\n")
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    ((name, place),) = ours["pytest11"].items()
    metadata(site, "dystop-for-pytest", f"[pytest11]\n{name} = {place}\n")
    path = os.pathsep.join([str(folder / "src"), str(site), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def python(*command, cwd=work):
        return subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return folder, python


def dystop(python, *command):
    return python("dystop", *command)


def test_it_runs_without_being_installed(monkeypatch, tmp_path):
    assert new("shell-idea", "--out", tmp_path).exit_code == 0
    monkeypatch.chdir(tmp_path / "shell-idea")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    readme = Path("README.md").read_text()
    (words,) = re.findall(r"^    dystop run (.*mechanism.folder=src)$", readme, re.M)
    done = CliRunner().invoke(app, ["run", *words.split(), *QUICK, "--name", "it"])
    assert done.exit_code == 0, done.output
    assert open_run(Path("runs/it")).info["mechanism"]["name"] == "shell-idea"


def test_next_three_commands_are_printed(tmp_path):
    result = new("my-idea", "--out", tmp_path / "a b")
    folder = tmp_path / "a b" / "my-idea"
    written = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert written == {
        "pyproject.toml",
        "README.md",
        "my-idea.toml",
        "src/my_idea/__init__.py",
        "tests/test_my_idea.py",
    }
    assert result.stdout.splitlines()[-3:] == [
        f"  pip install -e '{folder}[test]'",  # the extra brings pytest
        f"  pytest '{folder}'",
        f"  dystop run '{folder / 'my-idea.toml'}'",
    ]
    readme = (folder / "README.md").read_text()
    assert "    dystop compare --mechanisms my-idea,dystop\n" in readme
    assert "runs/*" not in readme


def test_it_is_listed(project):
    _, python = project
    result = dystop(python, "list", "mechanisms")
    assert result.returncode == 0, result.stderr
    assert "my-idea" in result.stdout
    assert "own work" in result.stdout
    described = dystop(python, "list", "mechanisms", "--describe", "my-idea")
    assert "mechanism.neighbours" in described.stdout


def test_it_runs_and_is_verified(project):
    folder, python = project
    by_name = dystop(python, "run", "mechanism.name=my-idea", *QUICK, "--name", "one")
    assert by_name.returncode == 0, by_name.stderr
    by_file = dystop(python, "run", folder / "my-idea.toml", *QUICK, "--name", "two")
    assert by_file.returncode == 0, by_file.stderr
    assert dystop(python, "verify", "runs/one").returncode == 0


def test_its_own_tests_pass(project):
    folder, python = project
    result = python("pytest", "-q", "-p", "no:cacheprovider", folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout


def test_the_kit_runs_by_name(project):
    folder, python = project
    plain = python("pytest", "-q", "-p", "no:cacheprovider", "--mechanism", "my-idea", cwd=folder)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert "11 passed" in plain.stdout
    wrong = python("pytest", "-p", "dystop.conformance.plugin", "--mechanism", "my-ide")
    assert wrong.returncode == 4
    assert "did you mean 'my-idea'?" in wrong.stderr


def test_a_broken_mechanism_fails_the_kit(project):
    folder, python = project
    source = folder / "src/my_idea/__init__.py"
    text = source.read_text()
    try:
        source.write_text(text.replace("view.budget, self", "view.budget + 9, self"))
        result = python("pytest", "-q", "-p", "no:cacheprovider", "--mechanism", "my-idea")
    finally:
        source.write_text(text)
    assert result.returncode == 1
    assert "1 failed, 10 passed" in result.stdout
    assert "`budgeted`" in result.stdout


REFUSED = {
    "My_Idea": ["40", "'my-idea'"],
    "../escape": ["40", "'escape'"],
    "": ["40", "lower-case"],
    "9lives": ["40", "'lives'"],
    "a--b": ["40", "'a-b'"],
    "x" * 41: ["40", "x" * 40],
    "dystop": ["'dystop list mechanisms'"],
    "numpy": ["'numpy'", "installed"],
    "json": ["Python", "'json'"],
    "class": ["Python", "'class'"],
    "tests": ["Python", "'tests'"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_names_are_refused(name, tmp_path):
    result = new(name, "--out", tmp_path)
    assert result.exit_code == 2
    assert f"name {name!r}" in result.stderr
    assert all(fact in result.stderr for fact in REFUSED[name])
    assert not list(tmp_path.iterdir())


def test_existing_folders_are_left_alone(tmp_path):
    (tmp_path / "my-idea").mkdir()
    (tmp_path / "my-idea" / "thesis.txt").write_text("years of work")
    result = new("my-idea", "--out", tmp_path)
    assert result.exit_code == 2
    assert str(tmp_path / "my-idea") in result.stderr
    assert "--out" in result.stderr
    assert (tmp_path / "my-idea" / "thesis.txt").read_text() == "years of work"
    assert len(list((tmp_path / "my-idea").iterdir())) == 1


def test_names_of_all_kinds(tmp_path):
    assert template_values("k2-means-pull")["kind"] == "K2MeansPull"
    for name in ("gossip", "k2-means-pull"):
        assert new(name, "--out", tmp_path).exit_code == 0
        for path, text in project_files(name).items():
            assert "{{" not in text
            if path.endswith(".py"):
                compile(text, path, "exec")
            if path.endswith(".toml"):
                tomllib.loads(text)
