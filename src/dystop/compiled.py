"""Loops compiled to machine code (numba), for what is sequential by nature or too small for torch.

A compiled function is plain Python: it reads like the pseudo-code and, with few exceptions, also
runs uncompiled (`NUMBA_DISABLE_JIT=1`). Its machine code is kept in the user's cache folder, so
only the first run ever waits, and less where other processes compile for it (`dystop.forge`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core import caching

from dystop.forge.claims import claims_in
from dystop.forge.kept import folder

P = ParamSpec("P")
R = TypeVar("R")
_FunctionCache: Any = caching.FunctionCache  # numba has no types
_INDEX = "index"  # what is claimed while numba rewrites one


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
    # Nobody passes a compiled function on as a value, which is what numba's C wrappers are for.
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    made: Callable[P, R] = numba.njit(**options)(function)
    if hasattr(made, "enable_caching"):  # not with NUMBA_DISABLE_JIT
        _keep(made, function)
    return made


def _keep(made: Any, function: Callable[..., Any]) -> None:
    """What `cache=True` would do, with a cache that several processes may fill at once."""
    with suppress(RuntimeError), _kept_in(folder()):  # nowhere to write: every process compiles
        kept = Kept(function)
        if Path(kept.cache_path).is_relative_to(folder()):  # and not beside the sources
            made._cache = kept


class Kept(_FunctionCache):  # type: ignore[misc]
    """Machine code of one function on disk; what another process is compiling is waited for."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled for these arguments; whoever gets None holds the claim on them."""
        found = super().load_overload(sig, target_context)
        if found is None:
            claims, what = claims_in(folder()), self.claim_of(sig)
            claims.claim(what)
            found = super().load_overload(sig, target_context)
            if found is not None:
                claims.drop(what)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what this process has compiled, and let the others have it."""
        claims = claims_in(folder())
        try:
            with claims.held(_INDEX):
                super().save_overload(sig, data)
        finally:
            claims.drop(self.claim_of(sig))

    def claim_of(self, sig: Any) -> str:
        """What is claimed for a function and the types of its arguments."""
        return f"{self._cache_file._index_path} {getattr(sig, 'args', sig)}"


@contextmanager
def _kept_in(place: Path) -> Iterator[None]:
    """A function is told its folder when it is decorated; other users of numba keep theirs."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(place)
    try:
        yield
    finally:
        config.CACHE_DIR = before
