"""`dystop doctor`: check whether this machine can run experiments."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from dystop.cli.terminal import handle_errors
from dystop.errors import ConfigError

_ENOUGH_DISK_BYTES = 200_000_000
_ENOUGH_MEMORY_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    found: str
    good: bool = True
    advice: str = ""
    is_known: bool = True  # False: whether it works shows only when it is needed


def _software() -> Iterator[Finding]:
    from dystop.folders.environment import versions

    for name, version in versions().items():
        good = version != "missing"
        yield Finding(name, version, good, f"install it: pip install {name}")


def _device() -> Finding:
    from dystop.folders.environment import device

    try:
        return Finding("device", device())
    except (ImportError, OSError, RuntimeError) as error:
        return Finding("device", f"torch does not load: {error}", False, "reinstall torch")


def _memory_and_disk() -> Iterator[Finding]:
    import torch

    from dystop.folders import environment as env
    from dystop.training.memory import available_bytes

    free, total = available_bytes(torch.device("cpu")), env.memory_bytes()
    shown = f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    yield Finding("memory", shown, free >= _ENOUGH_MEMORY_BYTES, "free at least 1 GB of memory")
    disk = env.free_disk_bytes(Path("runs"))
    enough = disk >= _ENOUGH_DISK_BYTES
    yield Finding("disk", f"{disk / 1e9:.1f} GB free", enough, "free at least 0.2 GB")
    good = env.writable(Path("runs"))
    yield Finding("runs/", "writable" if good else "not writable", good, "use --out DIR")


def findings() -> Iterator[Finding]:
    """Yield the results of all checks, in order."""
    yield from _software()
    yield _device()
    yield from _memory_and_disk()
    yield from _data()


def _data() -> Iterator[Finding]:
    from dystop.data.catalogue import DATASETS
    from dystop.data.fetch import search_folders, user_cache
    from dystop.errors import DataError
    from dystop.folders.environment import writable

    cache = user_cache()
    state = "writable" if writable(cache) else "not writable: set data.root to a writable folder"
    yield Finding("data cache", f"{cache} ({state})")
    try:
        folders = search_folders(None)
    except DataError as error:
        yield Finding("data folders", str(error), False, "correct DYSTOP_DATA")
        return
    for name, kind in DATASETS.usable().items():
        place = kind().place(folders)
        missing = "not on this machine; the first run would download it, and needs a network"
        yield Finding(name, place or missing, is_known=bool(place))


@handle_errors
def doctor() -> None:
    """Check this machine: software, device, memory, disk, data.

    Exits with 0 if it is usable, with 2 if something must be put right first.
    """
    usable = True
    for finding in findings():
        usable &= finding.good
        mark = ("ok " if finding.is_known else "-- ") if finding.good else "BAD"
        advice = "" if finding.good else f"  -> {finding.advice}"
        typer.echo(f"{mark} {finding.what:<12} {finding.found}{advice}")
    typer.echo("ready: dystop run" if usable else "not ready")
    raise typer.Exit(0 if usable else ConfigError.exit_code)
