"""What `dystop plot` is asked for, and the runs that it chooses: lines, labels and panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from dystop.config.readings import OPEN_READINGS
from dystop.errors import ConfigError, nearest
from dystop.folders.run_folder import RunData
from dystop.params import flatten
from dystop.report.data.comparison.sweep_layout import panels, setting_text
from dystop.report.data.groups import Group, group_runs
from dystop.report.data.settings import value_of

FigureName = Literal[
    "accuracy-time", "accuracy-traffic", "accuracy-epochs", "loss-time", "time-to-target",
    "staleness", "time-shares",
]  # fmt: skip
FIGURES: tuple[FigureName, ...] = get_args(FigureName)
Band = Literal["range", "std", "none"]
BANDS: tuple[Band, ...] = get_args(Band)
_SET_BY_READINGS = {reading.key for reading in OPEN_READINGS}
_NOT_SETTINGS = ("seed", "name", "mechanism.name", "engine.timing", "testbed.time_scale")


@dataclass(frozen=True, kw_only=True)
class PlotRequest:
    """Everything that can be chosen about a figure, apart from its looks."""

    figure: FigureName = "accuracy-time"
    mechanisms: tuple[str, ...] = ()  # and their order; empty: all
    labels: Mapping[str, str] = field(default_factory=dict)  # mechanism -> text
    panels: str = ""  # the key whose values have a panel each; empty: one panel
    law: str = ""  # the timing law; empty: that of the runs
    target: float | None = None
    band: Band = "range"


@dataclass(frozen=True)
class PlotLine:
    """A group with what tells it apart: the number of its colour and of its line style."""

    group: Group
    color: int
    style: int

    @property
    def label(self) -> str:
        """Text of the legend."""
        return self.group.label


@dataclass(frozen=True)
class PlotPanel:
    """The lines of one panel."""

    title: str
    lines: tuple[PlotLine, ...]


def plot_panels(runs: Sequence[RunData], request: PlotRequest) -> list[PlotPanel]:
    """Choose and arrange the runs of a figure.

    Raises:
        ConfigError: If a mechanism, a label, a key or a timing law does not fit the runs.
    """
    groups = _of_one_law(group_runs(runs), request)
    groups = _chosen(groups, request.mechanisms)
    _check_labels(groups, request.labels)
    if request.panels:
        _check_key(groups, request.panels)
    lines = _lines(groups, request)
    by_group = {id(line.group): line for line in lines}
    divided = panels([line.group for line in lines], [request.panels] if request.panels else [])
    return [
        PlotPanel(panel.title, tuple(by_group[id(group)] for group in panel.groups))
        for panel in divided
    ]


def _of_one_law(groups: Sequence[Group], request: PlotRequest) -> list[Group]:
    """Return the groups under the timing law that was asked for, or that all runs have."""
    laws = list(dict.fromkeys(group.law for group in groups))
    if request.law and request.law not in laws:
        raise ConfigError(
            f"command line: --timing {request.law}: these runs are under {', '.join(laws)}"
        )
    if len(laws) > 1 and not request.law and request.panels != "engine.timing":
        raise ConfigError(
            f"command line: these runs are under the timing laws {' and '.join(laws)}, whose times "
            f"do not compare; choose one with --timing {laws[0]}, or --panels engine.timing"
        )
    return [group for group in groups if request.law in ("", group.law)]


def _chosen(groups: Sequence[Group], mechanisms: Sequence[str]) -> list[Group]:
    """Return the groups of the chosen mechanisms, in the order in which they were typed."""
    known = list(dict.fromkeys(group.mechanism.name for group in groups))
    for name in mechanisms:
        if name not in known:
            raise ConfigError(
                f"command line: --mechanisms {name}: no run of it here{nearest(name, known)}; "
                f"there are {', '.join(known)}"
            )
    order = list(mechanisms) or known
    return [group for name in order for group in groups if group.mechanism.name == name]


def _check_labels(groups: Sequence[Group], labels: Mapping[str, str]) -> None:
    known = {group.mechanism.name for group in groups}
    for name in labels:
        if name not in known:
            raise ConfigError(
                f"command line: --label {name}=...: no run of this mechanism is drawn"
                f"{nearest(name, known)}; there are {', '.join(sorted(known))}"
            )


def _check_key(groups: Sequence[Group], key: str) -> None:
    known = {name for group in groups for name, _ in flatten(group.runs[0].config)}
    if key not in known:
        raise ConfigError(
            f"command line: --panels {key}: no such key in these runs{nearest(key, known)}; "
            "'dystop list keys' shows every key"
        )


def _lines(groups: Sequence[Group], request: PlotRequest) -> list[PlotLine]:
    """Give every group its label, its colour and its line style.

    A colour stands for a mechanism and a line style for its settings. Where there is one mechanism
    or one setting, both stand for the same.
    """
    varied = _varied(groups, request.panels)
    mechanisms = list(dict.fromkeys(group.mechanism.name for group in groups))
    settings = list(dict.fromkeys(setting_text(group, varied) for group in groups))
    out = []
    for group in groups:
        name, setting = group.mechanism.name, setting_text(group, varied)
        several = len(mechanisms) > 1 or not setting
        shown = request.labels.get(name, name + group.mechanism.caveat) if several else ""
        label = ", ".join(part for part in (shown, setting) if part)
        first, second = mechanisms.index(name), settings.index(setting)
        color = first if len(mechanisms) > 1 else second
        style = second if len(settings) > 1 else first
        out.append(PlotLine(replace(group, label=label), color, style))
    return out


def _varied(groups: Sequence[Group], panel_key: str) -> list[str]:
    """Return the keys that differ between groups of one mechanism, apart from the panels' key."""
    found: dict[str, None] = {}
    for name in {group.mechanism.name for group in groups}:
        runs = [group.runs[0] for group in groups if group.mechanism.name == name]
        keys = {key for run in runs for key, _ in flatten(run.config)}
        for key in sorted(keys - {*_NOT_SETTINGS, panel_key}):
            if _differs(runs, key):
                found[key] = None
    return list(found)


def _differs(runs: Sequence[RunData], key: str) -> bool:
    """Return whether a key differs; a key that a reading sets only among runs of one reading."""
    values: dict[str, set[str]] = {}
    for run in runs:
        reading = str(value_of(run, "reading")) if key in _SET_BY_READINGS else ""
        values.setdefault(reading, set()).add(str(value_of(run, key)))
    return any(len(found) > 1 for found in values.values())


def groups_of(divided: Sequence[PlotPanel]) -> list[Group]:
    """Return the groups of all panels."""
    return [line.group for panel in divided for line in panel.lines]
