"""Code that the user chose to run, and the place in it where an error arose.

A plug-in's mechanism, and a model or a task by import path, are such code. An error that passes
through it is blamed on its file and line, not on dystop.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dystop.errors import ConfigError, DystopError, UserCodeError

_CHOSEN: set[str] = set()  # top-level names of packages and modules
_LIBRARIES = {"dystop", "torch"}  # a mistake in their use is not one of their own


def choose(module: str) -> None:
    """Note that a module, and all of its package, is the user's choice."""
    _CHOSEN.update({module.partition(".")[0]} - _LIBRARIES)


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost call in the user's code; empty if there is none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _CHOSEN:
            found = f"{frame.f_code.co_filename}:{line}"
    if isinstance(error, SyntaxError) and error.filename:
        found = f"{error.filename}:{error.lineno}"  # of a file that could not be imported
    return found


def blamed(error: Exception) -> DystopError | None:
    """Return the error that names the user's file and line; None if no code of the user was run."""
    if isinstance(error, DystopError) or not (place := place_of(error)):
        return None
    return UserCodeError(
        f"{place}: {summary(error)}. The error is in code of your own, which dystop called; "
        "DYSTOP_DEBUG=1 shows the whole traceback"
    )


def summary(error: BaseException) -> str:
    """Return the type and the first line of an error.

    >>> summary(ValueError("out of range")), summary(KeyboardInterrupt())
    ('ValueError: out of range', 'KeyboardInterrupt')
    """
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")


def import_object(key: str, path: str, folder: str, expected: str) -> Any:
    """Import the callable that "package.module:name" names.

    Args:
        key: The section of the configuration that names it, for messages: "model" or "task".
        path: The import path.
        folder: Where its module lies; empty: where Python finds it.
        expected: What the path should be, for messages.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{key} = {path!r} is not an import path; {expected}")
    choose(module_name)
    try:
        with _importable(folder):
            module = import_module(module_name)
    except Exception as error:
        searched = f"not found in {key}.folder = {folder!r} either; " if folder else ""
        raise blamed(error) or ConfigError(
            f"{key} = {path!r}: module {module_name!r} cannot be imported ({summary(error)}); "
            f"{searched}put it beside the configuration file, install it or use PYTHONPATH; "
            f"{expected}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigError(
            f"{key} = {path!r}: module {module_name!r} has no callable {attribute!r}; {expected}"
        )
    return found


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Import from this folder first, as `python FILE` does; from no other one if it is empty."""
    if not folder:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
