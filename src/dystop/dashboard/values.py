"""Checks of untrusted values: numbers, counts and texts from files."""

import math

MAX_LENGTH = 200  # characters of a text from a file


def as_number(value: object) -> float | None:
    """Return the value if it is a finite number, else None.

    >>> as_number(3), as_number(float("nan")), as_number("3"), as_number(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        out = float(value)
    except OverflowError:
        return None
    return out if math.isfinite(out) else None


def as_count(value: object) -> int | None:
    """Return the value if it is a non-negative integer, else None.

    >>> as_count(3), as_count(-1), as_count(2.5), as_count("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    return value


def as_text(value: object, default: str = "") -> str:
    """Return a text from a file, cut to `MAX_LENGTH`; `default` where there is none.

    >>> as_text("dystop"), as_text(None, "not recorded"), as_text(3)
    ('dystop', 'not recorded', '3')
    """
    if isinstance(value, (str, int, float)) and value != "":
        out = str(value)
        return out if len(out) <= MAX_LENGTH else out[: MAX_LENGTH - 1] + "…"
    return default
