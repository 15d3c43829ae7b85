"""Code that the user chose to run, and the place in it where an error arose.

A plug-in's mechanism and a model by import path are such code. An error that passes through it is
blamed on its file and line, not on dystop.
"""

import traceback

from dystop.errors import DystopError, UserCodeError

_CHOSEN: set[str] = set()  # top-level names of packages and modules


def choose(module: str) -> None:
    """Note that a module, and all of its package, is the user's choice."""
    _CHOSEN.add(module.partition(".")[0])


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
