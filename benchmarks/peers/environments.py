"""One virtual environment per peer, made from its pinned requirements when it is missing."""

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
_DONE = "installed.txt"  # what the environment was made from; written last
_ERROR_LINES = 8


class EnvironmentFailed(Exception):
    """An environment could not be made; says why."""


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of a peer's environment, made now if need be.

    Raises:
        EnvironmentFailed: with the last lines that the installer printed.
    """
    home, wanted = folder / name, (REQUIREMENTS / f"{name}.txt").read_text()
    python, done = home / "bin" / "python", home / _DONE
    if done.is_file() and done.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    # The files are complete. Resolving them again could bring another torch, of several GB.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    _run([*pip, "--requirement", str(REQUIREMENTS / f"{name}.txt")])
    done.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise EnvironmentFailed("\n".join(lines[-_ERROR_LINES:]))
