"""Settings of runs as the pages of a sweep need them: values, their order, and words for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dystop.experiments.store import RunData

UNSET = "unset"
"""The value of a key that has none, as the configuration spells it."""


def value_of(run: RunData, key: str) -> Any:
    """A setting of a run, as its configuration has it; None where it has none."""
    found: Any = run.config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def values_of(runs: Iterable[RunData], key: str) -> list[Any]:
    """The values of a key, each once: numbers in their order, others as they first appear."""
    found: list[Any] = []
    for run in runs:
        if (value := value_of(run, key)) not in found:
            found.append(value)
    return sorted(found) if numeric(found) else found


def numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers, which yes and no are not."""
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def shown(value: Any) -> str:
    """A value as a tick has it.

    >>> shown(10.0), shown(0.4), shown("ring"), shown(True), shown(None)
    ('10', '0.4', 'ring', 'true', 'unset')
    """
    if value is None or isinstance(value, bool):
        return {None: UNSET, True: "true", False: "false"}[value]
    return f"{value:g}" if numeric([value]) else str(value)
