"""Loops compiled to machine code by numba, and the folder that keeps the machine code.

A compiled function is plain Python: it reads like the pseudo-code and, with few exceptions, also
runs uncompiled (`NUMBA_DISABLE_JIT=1`). Its machine code is kept in the user's cache folder, so
that only the first run on a machine waits for the compiler.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core import caching, types
from numba.np.numpy_support import as_dtype

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

P = ParamSpec("P")
R = TypeVar("R")
_FunctionCache: Any = caching.FunctionCache  # numba has no types

_VARIABLE = "NUMBA_CACHE_DIR"
_MARK = b"from dystop.compiled import"
_LOCK = "lock"
_COMPILING = threading.RLock()  # a function may call others that are not compiled yet


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; it runs without the interpreter lock."""
    return _compiled(function)


def compiled_for(*arguments: Any) -> "_Decorator":
    """Compile a function at its first call, for arguments of exactly these types.

    `INTS`, `FLOATS`, `POINTS` and their like accept any array of their kind, written or read-only,
    contiguous or not. A tuple of types stands for a tuple. A call needs none of the
    conversions (`as_readonly`) that keep `compiled` to one type of argument; on a handful of links
    they take longer than the work. An array of another kind is converted.
    """
    return _Decorator(arguments)


class _Decorator:
    """Makes compiled functions of one signature."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments = arguments

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _OneSignature(_compiled(function), self._arguments))


class _OneSignature:
    """A compiled function that is compiled, or loaded, when it is first called."""

    __slots__ = ("_arguments", "_function", "_is_ready")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._is_ready = not hasattr(function, "compile")  # with NUMBA_DISABLE_JIT

    def __call__(self, *args: Any) -> Any:
        if not self._is_ready:
            self._prepare()
        try:
            return self._function(*args)
        except TypeError:  # no machine code for these types
            pairs = zip(args, self._arguments, strict=True)
            return self._function(*(_converted(value, kind) for value, kind in pairs))

    def _prepare(self) -> None:
        """Compile or load the machine code once, also if several threads call at the same time."""
        with _COMPILING:
            if self._is_ready:
                return
            dispatcher: Any = self._function
            dispatcher.compile(tuple(_numba_type(kind) for kind in self._arguments))
            dispatcher.disable_compile()
            self._is_ready = True


def _numba_type(kind: Any) -> Any:
    if not isinstance(kind, tuple):
        return kind
    return types.Tuple([_numba_type(one) for one in kind])  # type: ignore[no-untyped-call]


def _converted(value: Any, kind: Any) -> Any:
    """Return an array with the numbers of another kind; other values stay as they are."""
    if isinstance(kind, tuple):
        return tuple(map(_converted, value, kind))
    if not isinstance(kind, types.Array):
        return value
    return np.asarray(value, as_dtype(kind.dtype))


def _any_array(kind: Any, dimensions: int = 1) -> Any:
    return types.Array(kind, dimensions, "A", readonly=True)


INT, FLOAT, BOOL, WORD = types.int64, types.float64, types.boolean, types.uint64
INTS, FLOATS, BOOLS = _any_array(INT), _any_array(FLOAT), _any_array(BOOL)
IDS, WORDS = _any_array(types.int32), _any_array(WORD)
INT_TABLE, POINTS = _any_array(INT, 2), _any_array(FLOAT, 2)
FLAGS = types.Array(BOOL, 1, "C")  # which the function writes: to make an array for its caller
NUMBERS, TABLE = types.Array(INT, 1, "C"), types.Array(FLOAT, 2, "C")  # takes it a microsecond
WORD_ARRAY = types.Array(WORD, 1, "C")


def compiled_dense(function: Callable[P, R]) -> Callable[P, R]:
    """Compile dense arithmetic: sums may be reordered into vector registers.

    Results repeat on the same machine; NaN and infinities keep their meaning.
    """
    return _compiled(function, fastmath={"contract", "reassoc", "nsz"})


def _compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    # C wrappers serve compiled functions that are passed as values, which nobody does here.
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    dispatcher: Any = numba.njit(**options)(function)
    if hasattr(dispatcher, "enable_caching"):  # absent with NUMBA_DISABLE_JIT
        with suppress(RuntimeError), _numba_cache(cache_folder()):  # no writable folder: no cache
            kept = LockedCache(function)
            if Path(kept.cache_path).is_relative_to(cache_folder()):  # and not beside the sources
                dispatcher._cache = kept
    made: Callable[P, R] = dispatcher
    return made


@cache
def cache_folder() -> Path:
    """Return the folder for the machine code of the installed sources.

    numba notices a change in the file of a function, but not in another file that the function
    calls into. So the name of the folder is a digest of all files that compile something.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dystop" / "compiled"
    return Path(os.environ.get(_VARIABLE) or home) / source_digest(Path(__file__).parent)


def source_digest(package: Path) -> str:
    """Return a digest of every file of a package that compiles something, and of this one."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        if _MARK in content or path.name == Path(__file__).name:
            digest.update(path.name.encode() + content)
    return digest.hexdigest()[:16]


class LockedCache(_FunctionCache):  # type: ignore[misc]
    """Machine code of one function on disk, whose index only one process writes at a time.

    Two processes that write numba's index at once may give two signatures the same file, and one
    signature then runs the other's code (ADR 0016).
    """

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store what this process has compiled; on a full disk the next one compiles it again."""
        with _locked(cache_folder() / _LOCK), suppress(OSError):
            super().save_overload(sig, data)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock, or none where the system cannot lock files."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("wb"))  # closing it releases the lock
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _numba_cache(folder: Path) -> Iterator[None]:
    """Set numba's cache folder while a function is decorated; other users of numba keep theirs."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
