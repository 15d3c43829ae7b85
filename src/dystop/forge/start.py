"""Begins to compile beside a command, where there is something to compile and a core for it."""

import atexit
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dystop.exit_with_parent import LIFELINE
from dystop.forge import signatures
from dystop.forge.kept import folder, marker
from dystop.parallel import cores

FONTS = "fonts"
TRAINING = "training"
FEWEST_CORES = 2
_COMPILERS = 2  # at least: the command mostly waits for them
_TRAINING = ('["dystop.training.', '["dystop.simulator.')
_REPORTING = ("run", "resume", "compare", "sweep", "reproduce")
_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # where a driver for GPUs shows itself

_beside: list[subprocess.Popen[bytes]] = []


def start(words: Sequence[str], usable: int | None = None) -> None:
    """Compile in other processes what the command in these words will call.

    Args:
        words: Of the command line.
        usable: Cores; as many as there are when absent.
    """
    usable = usable or cores()
    if _beside or usable < FEWEST_CORES or not _may_compile():
        return
    parts = parts_of(words)
    if marker(chosen(parts)).exists() or not _is_writable(folder()):
        return
    with suppress(OSError):  # no more processes: the command compiles by itself
        _beside.append(_launch(max(_COMPILERS, usable - 2), parts))
        atexit.register(dismiss)


def _may_compile() -> bool:
    return os.name == "posix" and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


def parts_of(words: Sequence[str]) -> list[str]:
    """What a command needs beside planning: kernels for a CPU, and the fonts of a report.

    >>> parts_of(["run", "--no-report", "training.device=cpu"])
    ['training']
    """
    asked = "training.device=cpu" in words or os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    on_cpu = asked or not any(device.exists() for device in _DEVICES)
    draws = words[0] in _REPORTING and "--no-report" not in words
    return [TRAINING] * on_cpu + [FONTS] * draws


def chosen(parts: Sequence[str]) -> list[str]:
    """The lines that a command needs: the kernels that train on a CPU are not for all of them."""
    return [k for k in signatures.read() if TRAINING in parts or not is_training(k)]


def is_training(line: str) -> bool:
    """Whether a line is about a kernel that trains; its module also needs torch."""
    return line.startswith(_TRAINING)


def _launch(workers: int, parts: Sequence[str]) -> subprocess.Popen[bytes]:
    """A silent process in a group of its own; its standard input tells it when this one is gone."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    more = {"PYTHONPATH": places, LIFELINE: "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dystop.forge.work", str(workers), *parts],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **more},
        process_group=0,
    )


def dismiss() -> None:
    """End what was started; its own processes end with the pipe they all read."""
    while _beside:
        process = _beside.pop()
        process.kill()
        process.communicate()
