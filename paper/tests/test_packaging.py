"""The wheel and the sdist of this package: complete, and pinned to the dystop of their version."""

import ast
import os
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
    """Return the names of the files in the sdist and in the wheel that is built from it."""
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
    with zipfile.ZipFile(wheel) as archive:
        return unpacked, set(archive.namelist())


def test_no_module_and_no_page_is_left_out(built):
    unpacked, wheel = built
    package = {p.relative_to(PAPER / "src").as_posix() for p in (PAPER / "src").rglob("*.*")
               if p.is_file() and p.suffix != ".pyc"}  # fmt: skip
    assert len(package) > 5
    assert package <= wheel
    kept = [*PAPER.glob("tests/*.py"), *PAPER.glob("docs/**/*.md"), *PAPER.glob("scripts/*.py")]
    assert [p for p in kept if not (unpacked / p.relative_to(PAPER)).is_file()] == []


def test_the_version_is_that_of_dystop():
    assert PROJECT["version"] == dystop.__version__
    assert f"dystop=={dystop.__version__}" in PROJECT["dependencies"]


def test_every_command_is_announced(built):
    (points,) = [name for name in built[1] if name.endswith("/entry_points.txt")]
    assert points.startswith("dystop_paper-")
    for target in PROJECT["entry-points"]["dystop.commands"].values():
        module = target.partition(":")[0]
        assert (PAPER / "src" / f"{module.replace('.', '/')}.py").is_file()


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
