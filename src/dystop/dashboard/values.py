"""Values of files that may hold anything, and words for them."""

import math

LONGEST = 200  # characters of a text that some file brought along


def known(value: object) -> float | None:
    """The value if it is a finite number, else None.

    >>> known(3), known(float("nan")), known("3"), known(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        out = float(value)
    except OverflowError:
        return None
    return out if math.isfinite(out) else None


def whole(value: object) -> int | None:
    """The value if it is a whole number that is not negative, else None.

    >>> whole(3), whole(-1), whole(2.5), whole("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    return value


def text(value: object, other: str = "") -> str:
    """A word out of a file, cut where it is endless; `other` where there is none.

    >>> text("dystop"), text(None, "not recorded"), text(3)
    ('dystop', 'not recorded', '3')
    """
    if isinstance(value, (str, int, float)) and value != "":
        out = str(value)
        return out if len(out) <= LONGEST else out[: LONGEST - 1] + "…"
    return other
