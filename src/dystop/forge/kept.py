"""Where machine code is kept, and whether all of it is there."""

import hashlib
import os
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
_MARK = b"from dystop.compiled import"
_DECORATORS = "compiled.py"
_PROCESSORS = Path("/proc/cpuinfo")


@cache
def folder() -> Path:
    """Where the machine code of these sources is kept.

    By itself numba notices a change of the file that holds a function, but not of another file
    that the function calls into; so the folder is named after all files that compile something.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dystop" / "compiled"
    return Path(os.environ.get(VARIABLE) or home) / fingerprint(Path(__file__).parents[1])


def fingerprint(package: Path) -> str:
    """Digest of every file of a package that compiles something, or says how."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        if _MARK in content or path.name == _DECORATORS:
            digest.update(path.name.encode() + content)
    return digest.hexdigest()[:16]


def marker(lines: list[str]) -> Path:
    """A file that is there once these signatures are compiled, by this numba, for this processor.

    >>> marker(["a"]) != marker(["a", "b"])
    True
    """
    about = [sys.version, _numba(), _processor(), *lines]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()
    return folder() / f"complete-{digest[:16]}"


def _numba() -> str:
    """Its version, without importing it."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """What the first core says about itself; a home folder may be shared by unequal machines."""
    try:
        with _PROCESSORS.open("rb") as file:
            lines = file.read(8192).split(b"\n\n")[0].splitlines()
    except OSError:
        return ""
    kinds = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(line for line in lines if line.startswith(kinds)).decode(errors="replace")
