"""Loops compiled to machine code (numba), for what is sequential by nature or too small for torch.

A compiled function is plain Python that also runs uncompiled (`NUMBA_DISABLE_JIT=1`). Its machine
code is kept beside the source or in the user's cache folder, so only the first run ever waits.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; it runs without the interpreter lock."""
    made: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made


def compiled_parallel(function: Callable[P, R]) -> Callable[P, R]:
    """The same with `numba.prange` spread over the cores.

    Only for functions whose result does not depend on the number of threads.
    """
    made: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy", parallel=True)(
        function
    )
    return made


def compiled_dense(function: Callable[P, R]) -> Callable[P, R]:
    """The same for dense arithmetic: sums may be reordered into vector registers.

    Results repeat on the same machine; NaN and infinities keep their meaning.
    """
    relaxed: Any = {"contract", "reassoc", "nsz"}
    made: Callable[P, R] = numba.njit(
        cache=True, nogil=True, error_model="numpy", fastmath=relaxed
    )(function)
    return made
