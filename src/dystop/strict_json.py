"""JSON from files that anybody may have written: finite numbers and a bounded depth only.

This module is apart from `storage` and `serialization`, because records need it. They are read by
state machines, which import no clock, and by the command line, which waits for no NumPy.
"""

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or holds a number that no float
            holds, such as 1e400.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
