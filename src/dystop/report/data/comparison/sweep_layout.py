"""How a sweep is arranged: which key is the axis, what a line is, and what shares a panel.

Colours tell mechanisms apart, or the values on the axis where a sweep has one mechanism. Rows
compare where all keys of world and data have the same values, so every such panel has stars and a
headline of its own. Values keep the order in which they were typed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dystop.params import short_names
from dystop.report.data.groups import Group
from dystop.report.data.settings import are_numbers, value_of, value_text, values_of

MECHANISM = "mechanism.name"
_OWN = "mechanism."


@dataclass(frozen=True)
class Panel:
    """The groups that share the values of some keys."""

    title: str  # such as "phi = 0.4"; empty where there is one panel
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class SweepLayout:
    """The keys of a sweep and what each of them is for."""

    keys: tuple[str, ...]  # with more than one value, in the order of the command
    axis: str
    values: tuple[Any, ...]  # of the axis

    @property
    def has_mechanisms(self) -> bool:
        """Whether several mechanisms are drawn beside each other."""
        return MECHANISM in self.keys and self.axis != MECHANISM

    @property
    def panel_keys(self) -> tuple[str, ...]:
        """The keys that are neither on the axis nor told apart by colour."""
        return tuple(key for key in self.keys if key not in (self.axis, MECHANISM))

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """The keys that two rows must share to compare."""
        given = tuple(key for key in self.keys if not key.startswith(_OWN))
        return given if len(given) < len(self.keys) else self.panel_keys

    @property
    def curve_keys(self) -> tuple[str, ...]:
        """The keys that curves over time must share to stand in one panel."""
        return tuple(k for k in self.keys if k != MECHANISM) if self.has_mechanisms else (
            self.panel_keys
        )  # fmt: skip


def sweep_layout(groups: Sequence[Group], keys: Sequence[str]) -> SweepLayout:
    """Put the key with the most numbers on the axis; a mechanism's name only where it is alone."""
    runs = [group.runs[0] for group in groups]
    values = {key: values_of(runs, key) for key in keys}
    varied = tuple(key for key in keys if len(values[key]) > 1) or tuple(keys[:1])
    able = [key for key in varied if key != MECHANISM] or list(varied)
    axis = max(able, key=lambda key: (are_numbers(values[key]), len(values[key])))
    return SweepLayout(varied, axis, tuple(values[axis]))


def panels(groups: Sequence[Group], keys: Sequence[str]) -> list[Panel]:
    """Divide groups by the values of some keys, in the order of first appearance."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(setting_text(group, keys), []).append(group)
    return [Panel(title, tuple(many)) for title, many in found.items()]


def setting_text(group: Group, keys: Sequence[str]) -> str:
    """Return the values of some keys in a group, such as "phi = 0.4, workers = 6"."""
    short = short_names(keys)
    return ", ".join(f"{short[key]} = {value_text(value_of(group.runs[0], key))}" for key in keys)


def colored(groups: Sequence[Group], layout: SweepLayout) -> list[Group]:
    """Return the groups with one colour per mechanism, or per value of the axis."""
    runs = [group.runs[0] for group in groups]
    key = MECHANISM if layout.has_mechanisms else layout.axis
    order = values_of(runs, key)
    return [
        replace(group, color_index=order.index(value_of(group.runs[0], key))) for group in groups
    ]


def short_labels(groups: Sequence[Group], layout: SweepLayout) -> list[Group]:
    """Return the groups of a panel with labels that leave out what the panel's title says."""
    own = [key for key in layout.keys if key not in (MECHANISM, *layout.shared_keys)]
    out = []
    for group in groups:
        parts = [group.mechanism.title] if MECHANISM in layout.keys or not own else []
        parts += [setting_text(group, own)] if own else []
        out.append(replace(group, label=", ".join(parts)))
    return out


def curve_panels(groups: Sequence[Group], layout: SweepLayout) -> list[Panel]:
    """Divide groups for curves over time; their labels name the mechanism, or the axis value."""

    def label(group: Group) -> str:
        one = group.mechanism.name + group.mechanism.caveat
        return one if layout.has_mechanisms else setting_text(group, [layout.axis])

    named = [replace(group, label=label(group)) for group in groups]
    return panels(named, layout.curve_keys)
