"""The choice between a NumPy function and its compiled kernel.

A function that is slow for a million workers exists twice: as a plain NumPy reference in the module
it belongs to, and as a kernel of the same signature in `dystop.kernels`. The decorator
`accelerated` ties the two together. It imports the kernel at the first call. Where the kernels are
missing or switched off (`DYSTOP_KERNELS=off`), the reference runs and only the speed changes.

A round of a hundred workers calls such functions twenty times. So the environment is read once,
when this module is imported, and every function keeps the kernel that it found. A test sets
`Accelerated.enabled` to switch the kernels off and on again.
"""

import os
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FEW = 64
"""Links or workers that a kernel for few of them compares one by one, before NumPy has started."""

VARIABLE = "DYSTOP_KERNELS"
"""Environment variable: `off` makes every function run its NumPy reference."""

_OPTIONAL = ("dystop.kernels", "dystop.compiled", "numba", "llvmlite")


class Accelerated(Generic[P, R]):
    """A function that runs its compiled kernel where there is one, else its NumPy reference."""

    enabled: ClassVar[bool] = os.environ.get(VARIABLE) != "off"  # for all functions together

    def __init__(
        self, reference: Callable[P, R], path: str, size: Callable[..., float] | None = None
    ) -> None:
        """Tie a reference to the kernel at `path`, written as "module:function"."""
        self.reference, self.path, self._size = reference, path, size
        self._chosen: Callable[P, R] | None = None  # while enabled, from the first call on
        update_wrapper(self, reference)

    @property
    def is_loaded(self) -> bool:
        """Whether a kernel is in use already, so that a call does not load machine code."""
        return self.enabled and self._chosen is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel or the reference."""
        if not self.enabled or (self._size is not None and self._size(*args, **kwargs) > FEW):
            return self.reference(*args, **kwargs)
        if self._chosen is None:
            self._chosen = kernel_at(self.path) or self.reference
        return self._chosen(*args, **kwargs)


def accelerated(
    path: str, size: Callable[..., float] | None = None
) -> Callable[[Callable[P, R]], Accelerated[P, R]]:
    """Decorate a NumPy reference with the "module:function" of its kernel.

    The plain function stays reachable as the attribute `reference`.

    Args:
        path: Where the kernel is.
        size: Of a kernel for few: how many it would compare one by one. The reference runs where
            they are more than `FEW`.
    """
    return lambda reference: Accelerated(reference, path, size)


def kernel_at(path: str) -> Callable[..., Any] | None:
    """Return the kernel at "module:function", or None where the NumPy reference has to run."""
    return _imported(path) if Accelerated.enabled else None


@cache
def _imported(path: str) -> Callable[..., Any] | None:
    """Import a kernel; None where the package of kernels or its compiler is not installed."""
    module, _, name = path.partition(":")
    try:
        import_module(module.rpartition(".")[0])
        kernel: Callable[..., Any] = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if missing.name in _OPTIONAL:
            return None
        raise
    return kernel
