"""Commands of installed packages, in processes of their own that find a package on their path."""

import os
import subprocess
import sys

import pytest

WEIGHING = '''
"""Weighs."""

from dystop.cli.packages import command


def weigh(times: int = 1) -> None:
    """Weigh something."""
    print("heavy " * times)


app = command(weigh, "dystop weigh --times 2")
'''
POINTS = """
[dystop.commands]
weigh = weighing:app
run = weighing:app
lost = weighing:gone
"""


@pytest.fixture
def dystop(tmp_path):
    """The command line where a package with three commands is installed."""
    info = tmp_path / "weighing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weighing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "weighing.py").write_text(WEIGHING)

    def call(*words):
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "dystop", *words],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    return call


def test_a_package_adds_a_command(dystop):
    assert dystop("weigh", "--times", "2").stdout.split() == ["heavy", "heavy"]
    said = dystop("weigh", "--help").stdout
    assert "Weigh something." in said
    assert "dystop weigh --times 2" in said
    wrong = dystop("weigh", "--times", "two")
    assert wrong.returncode == 2
    assert "expected an integer" in wrong.stderr


def test_help_lists_it_and_survives_a_broken_one(dystop):
    shown = dystop("--help")
    assert shown.returncode == 0
    assert "Weigh something." in shown.stdout
    assert "lost" in shown.stdout
    broken = dystop("lost")
    assert broken.returncode == 4
    assert "lost cannot be loaded from weighing: AttributeError" in broken.stderr


def test_a_built_in_command_keeps_its_name(dystop):
    assert "heavy" not in dystop("run", "--help").stdout
