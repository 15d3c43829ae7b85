"""Settings of runs: dotted keys, where runs differ, and values as text."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dystop.config import Experiment
from dystop.config.keys import keys_of
from dystop.folders.run_folder import RunData
from dystop.params import flatten
from dystop.units import NOTHING

UNSET = "unset"
"""Text for a key without a value, as the configuration spells it."""

_MECHANISM = "mechanism.name"
_OF_ONE_EXPERIMENT = re.compile(
    r"name|seed|reading|(mechanism|output|stop)\..*|evaluate\.(every_s|every_rounds|per_worker)"
    r"|training\.(device|path|compile|chunk|lanes|evaluation_batch|memory_limit_gb)|engine\.ahead"
    r"|data\.root|testbed\.(?!devices|links|trace|time_scale).*"
)
"""Keys that may differ between runs of one experiment."""

Table = list[tuple[str, str]]
"""Rows of key and value."""


def setting_rows(tree: Mapping[str, Any]) -> Table:
    """Return nested tables as rows of dotted key and JSON value.

    >>> setting_rows({"seed": 1, "mechanism": {"name": "dystop", "V": 10.0}})
    [('seed', '1'), ('mechanism.name', '"dystop"'), ('mechanism.V', '10.0')]
    """
    return [
        (key, json.dumps(value, default=str, ensure_ascii=False)) for key, value in flatten(tree)
    ]


def differing_settings(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return every key whose value is not the same in all runs, with one value per run."""
    tables = [dict(setting_rows(run.config)) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [(key, [_value(key, table, tables) for table in tables]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def experiment_settings(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return the settings that make runs different experiments, with one value per run.

    Mechanism and seed may differ, and what says how long a run is watched, where it is stored and
    how quickly it is computed.
    """
    defaults = {key.name: key.default for key in keys_of(Experiment)}
    rows = []
    for key, values in differing_settings(runs):
        default = defaults.get(key)
        usual = UNSET if default is None else json.dumps(default, default=str, ensure_ascii=False)
        found = [usual if value == UNSET else value for value in values]
        if len(set(found)) > 1 and not _OF_ONE_EXPERIMENT.fullmatch(key):
            rows.append((key, found))
    return rows


def _value(key: str, table: Mapping[str, str], tables: Sequence[Mapping[str, str]]) -> str:
    """Return the value of a key; "unset", or a dash where the run's mechanism has no such key."""
    if key in table:
        return table[key]
    owners = {other.get(_MECHANISM) for other in tables if key in other}
    foreign = key.startswith("mechanism.") and table.get(_MECHANISM) not in owners
    return NOTHING if foreign else UNSET


def plain_value(value: str) -> str:
    """Return a JSON value without quotes and without a zero fraction.

    >>> plain_value("10.0"), plain_value("0.4"), plain_value('"combined"')
    ('10', '0.4', 'combined')
    """
    return value.strip('"').removesuffix(".0")


def value_of(run: RunData, key: str) -> Any:
    """Return the value of a dotted key in a run's configuration, None where it has none.

    A mechanism that an import path names goes by its own name, as everywhere in a report.
    """
    found: Any = run.info if key == _MECHANISM and "mechanism" in run.info else run.config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def values_of(runs: Iterable[RunData], key: str) -> list[Any]:
    """Return the distinct values of a key in the order of appearance, which is that of typing."""
    found: list[Any] = []
    for run in runs:
        if (value := value_of(run, key)) not in found:
            found.append(value)
    return found


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers; a Boolean is not."""
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def value_text(value: Any) -> str:
    """Return a value as a tick label shows it.

    >>> value_text(10.0), value_text(0.4), value_text("ring"), value_text(True), value_text(None)
    ('10', '0.4', 'ring', 'true', 'unset')
    """
    if value is None or isinstance(value, bool):
        return {None: UNSET, True: "true", False: "false"}[value]
    return f"{value:g}" if are_numbers([value]) else str(value)
