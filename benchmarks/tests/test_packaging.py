"""The sdist and the wheel of the benchmarks, and the command that they add."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hatchling import build

import dystop

ROOT = Path(__file__).parents[1]
NAME = f"dystop_benchmarks-{dystop.__version__}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Return the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build.build_sdist(str(folder))
    assert name == f"{NAME}.tar.gz"
    with tarfile.open(folder / name) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Return the wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(sdist)
        return folder / build.build_wheel(str(folder))


def modules(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def test_no_file_is_left_out(sdist, wheel):
    there = modules(ROOT / "src")
    assert len(there) > 20
    assert there == modules(sdist / "src")
    assert {path.name for path in ROOT.glob("*.py")} == {path.name for path in sdist.glob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        assert there == {name for name in archive.namelist() if name.endswith(".py")}


def test_the_version_is_pinned_to_that_of_the_product(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))
    assert metadata["Version"] == dystop.__version__
    assert f"dystop[testbed]=={dystop.__version__}" in metadata.get_all("Requires-Dist")
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_installed_wheel_adds_its_command(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"bench"} == project["entry-points"]["dystop.commands"].keys()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    shown = subprocess.run(
        [sys.executable, "-m", "dystop", "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path},
    ).stdout  # fmt: skip
    assert re.search(r"^ *bench +Measure how fast dystop is here", shown, re.M)


def test_without_it_there_is_no_such_command():
    (found,) = entry_points(group="dystop.commands", name="bench")
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **k: (); "
        "from dystop.cli import app; app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bench"], capture_output=True, text=True, check=False
    )
    assert found.value == "dystop_benchmarks.command:app"
    assert done.returncode == 2
    assert "bench" in done.stderr
