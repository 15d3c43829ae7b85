"""Loops compiled to machine code (numba), for what is sequential by nature or too small for torch.

A compiled function is plain Python: it reads like the pseudo-code and, with few exceptions, also
runs uncompiled (`NUMBA_DISABLE_JIT=1`). Its machine code is kept in the user's cache folder, so
only the first run ever waits. By itself numba notices a change of the file that holds a function,
but not of another file that the function calls into; so the folder is named after the contents of
all files that compile something.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")
_MARK = b"from dystop.compiled import"
_VARIABLE = "NUMBA_CACHE_DIR"


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; it runs without the interpreter lock."""
    return _made(function)


def compiled_parallel(function: Callable[P, R]) -> Callable[P, R]:
    """The same with `numba.prange` spread over the cores.

    Only for functions whose result does not depend on the number of threads.
    """
    return _made(function, parallel=True)


def compiled_dense(function: Callable[P, R]) -> Callable[P, R]:
    """The same for dense arithmetic: sums may be reordered into vector registers.

    Results repeat on the same machine; NaN and infinities keep their meaning.
    """
    return _made(function, fastmath={"contract", "reassoc", "nsz"})


def _made(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    options |= {"nogil": True, "error_model": "numpy"}
    made: Callable[P, R]
    with _kept_in(_folder()):
        try:
            made = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # nowhere to write: compile in every process
            made = numba.njit(**options)(function)
    return made


@cache
def _folder() -> Path:
    """Where the machine code of these sources is kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dystop" / "compiled"
    return Path(os.environ.get(_VARIABLE) or home) / fingerprint(Path(__file__).parent)


def fingerprint(package: Path) -> str:
    """Digest of every file of a package that compiles something."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        if _MARK in content:
            digest.update(path.name.encode() + content)
    return digest.hexdigest()[:16]


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """A function is told its folder when it is decorated; other users of numba keep theirs."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
