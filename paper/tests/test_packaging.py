"""The wheel and the sdist of this package: complete, and pinned to the dystop of their version."""

import ast
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from hatchling import build

import dystop

PAPER = Path(__file__).parents[1]
PROJECT = tomllib.loads((PAPER / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the unpacked sdist, and the wheel that is built from it."""
    folder, before = tmp_path_factory.mktemp("built"), Path.cwd()
    try:
        os.chdir(PAPER)
        sdist = folder / build.build_sdist(str(folder))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked = folder / sdist.name.removesuffix(".tar.gz")
        os.chdir(unpacked)
        wheel = folder / build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    return unpacked, zipfile.ZipFile(wheel)


def test_no_module_and_no_page_is_left_out(built):
    unpacked, wheel = built
    package = {p.relative_to(PAPER / "src").as_posix() for p in (PAPER / "src").rglob("*.*")
               if p.is_file() and p.suffix != ".pyc"}  # fmt: skip
    assert len(package) > 40
    assert package <= set(wheel.namelist())
    kept = [*PAPER.glob("tests/*.py"), *PAPER.glob("docs/**/*.md"), *PAPER.glob("scripts/*.py")]
    assert [p for p in kept if not (unpacked / p.relative_to(PAPER)).is_file()] == []


def test_the_version_is_that_of_dystop():
    assert PROJECT["version"] == dystop.__version__
    assert f"dystop=={dystop.__version__}" in PROJECT["dependencies"]


def test_an_installed_wheel_adds_its_commands(built, tmp_path):
    built[1].extractall(tmp_path / "installed")
    path = os.pathsep.join([str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")])

    def dystop(*words):
        line = [sys.executable, "-m", "dystop", *words]
        ran = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(line, cwd=tmp_path, env=ran, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = PROJECT["entry-points"]["dystop.commands"]
    assert len(names) == 3
    listed = dystop("--help")
    assert all(name in listed for name in names)
    assert "fig-completion-time" in dystop("reproduce", "--list")


def test_whatever_is_imported_is_declared():
    known = {name: {d.lower() for d in found} for name, found in packages_distributions().items()}
    declared = {word.partition(">")[0].partition("=")[0] for word in PROJECT["dependencies"]}
    missing = set()
    for path in (PAPER / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names} & known.keys() - {"dystop_paper"}
            missing |= {(top, path.name) for top in tops if not known[top] & declared}
    assert missing == set()
