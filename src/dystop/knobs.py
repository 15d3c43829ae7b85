"""Deprecated home of `dystop.param`, which projects of `dystop new mechanism` 0.1 import.

Version 0.3 removes this module.
"""

import warnings
from typing import Any

from dystop.params import param, section

_RENAMED = {"knob": param, "block": section}


def __getattr__(name: str) -> Any:
    """Return a function under its old name, and warn."""
    if name not in _RENAMED:
        raise AttributeError(f"module 'dystop.knobs' has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(
        f"dystop.knobs.{name} is now {new.__module__}.{new.__name__}; dystop 0.3 removes the old"
        " name. Write 'from dystop import param'",
        DeprecationWarning,
        stacklevel=2,
    )
    return new
