"""Names and sentences about a run: its mechanism, label, status, rules and commands."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dystop.config import Experiment
from dystop.config.keys import keys_of
from dystop.config.readings import reading_values
from dystop.control import stopping
from dystop.control.laws import LAWS, TestbedLaw
from dystop.folders.run_folder import RunData, is_abandoned
from dystop.types import FAITHFUL, OUR

PUBLISH_RULES = {
    "eager": "eager: a pull returns the newest model, even if its training would still be "
    "running (the paper's equations)",
    "on_completion": "on_completion: a pull returns the last finished model, as on real workers",
}


@dataclass(frozen=True)
class MechanismInfo:
    """The mechanism of a run, and how closely its code follows the published one."""

    name: str
    mode: str
    provenance: str
    summary: str

    @property
    def title(self) -> str:
        """Name with provenance, for tables."""
        return f"{self.name} ({self.provenance})" if self.provenance else self.name

    @property
    def ours(self) -> str:
        """Which parts of a mechanism are not from its source, as in "base graph and weights"."""
        return self.provenance.partition(OUR)[2]

    @property
    def caveat(self) -> str:
        """Provenance in parentheses, for legends; empty where the code follows the source."""
        if self.ours:
            return f" (our {self.ours})"
        faithful = not self.provenance or self.provenance in FAITHFUL
        return "" if faithful else f" ({self.provenance})"

    @property
    def inexact(self) -> bool:
        """Whether the code of a published mechanism could not be followed exactly."""
        return bool(self.caveat) and self.provenance != "reference"


def mechanism_of(run: RunData) -> MechanismInfo:
    """Return the mechanism of a run, from run.json or else from its configuration."""
    found = run.info.get("mechanism") or {}
    found = found if isinstance(found, dict) else {"name": found}
    name = found.get("name") or _mechanism_section(run).get("name") or "unknown mechanism"
    return MechanismInfo(
        str(name),
        str(found.get("mode") or ""),
        str(found.get("provenance") or ""),
        str(found.get("summary") or ""),
    )


def _mechanism_section(run: RunData) -> dict[str, object]:
    section = run.config.get("mechanism")
    return section if isinstance(section, dict) else {}


def staleness_bound(run: RunData) -> float | None:
    """Return the staleness bound of the mechanism, None where it has none."""
    bound = _mechanism_section(run).get("staleness_bound")
    return float(bound) if isinstance(bound, (int, float)) else None


def is_planned(run: RunData) -> bool:
    """Return whether a run is planning only: nothing was trained (`engine.train = false`)."""
    section = run.config.get("engine")
    return isinstance(section, dict) and section.get("train") is False


def clock_name(runs: Sequence[RunData]) -> str:
    """Return what the clock of these runs shows: measured time on the testbed, else simulated."""
    testbed = {run.info.get("kind") == "testbed" for run in runs}
    if len(testbed) > 1:
        return "time"
    return "measured time" if testbed == {True} else "simulated time"


def run_labels(runs: Sequence[RunData], longest: int = 34) -> list[str]:
    """Return one distinct label per run; runs of equal label are numbered."""
    plain = [_label(run, longest) for run in runs]
    total, seen = Counter(plain), Counter[str]()
    out = []
    for text in plain:
        seen[text] += 1
        out.append(f"{text} #{seen[text]}" if total[text] > 1 else text)
    return out


def _label(run: RunData, longest: int) -> str:
    """Return the run's name, shortened if long, and the mechanism unless the name contains it."""
    mechanism = mechanism_of(run)
    name = run.name if len(run.name) <= longest else run.name[: longest - 1] + "…"
    contained = mechanism.name.lower() in name.lower()
    return name + ("" if contained else f" · {mechanism.name}") + mechanism.caveat


def worker_count(run: RunData) -> int:
    """Return the number of workers of a run."""
    recorded = len(run.fleet.get("data_size") or run.fleet.get("label_counts") or ())
    return recorded or max((r.alive for r in run.records), default=0)


def law_summary(name: str) -> str:
    """Return a timing law as a sentence; only its name if it is not installed here.

    >>> law_summary("of-somebody-else")
    'of-somebody-else'
    """
    return f"{name}: {LAWS[name].summary}" if name in LAWS else name


def law_name(run: RunData) -> str:
    """Return the name of a run's timing law."""
    return str(run.info.get("timing") or "not recorded")


def law_text(run: RunData) -> str:
    """Return the timing law as a sentence; the testbed has none, its clock is measured."""
    if run.info.get("kind") == "testbed":
        return "measured: seconds on real processes"
    return law_summary(law_name(run))


def publish_text(run: RunData) -> str:
    """Return the publish rule as a sentence."""
    value = str(run.info.get("publish") or "not recorded")
    return PUBLISH_RULES.get(value, value)


def readings_text(runs: Sequence[RunData]) -> str:
    """Return how these runs read what the paper leaves open, as one line.

    A reading that only some mechanisms have is followed by their names.
    """
    defaults = {key.name: key.default for key in keys_of(Experiment)}
    found: dict[str, dict[str, list[str]]] = {}  # label, value, mechanisms
    for run in runs:
        for label, value in reading_values(_followed(run), defaults).items():
            names = found.setdefault(label, {}).setdefault(str(value), [])
            names.append(mechanism_of(run).name)
    total = len(runs)
    lines = [_reading_text(label, values, total) for label, values in found.items()]
    presets = dict.fromkeys(str(run.config.get("reading", "none")) for run in runs)
    chosen = ", ".join(name for name in presets if name != "none")
    return (f"{chosen}: " if chosen else "") + "; ".join(lines)


def _followed(run: RunData) -> dict[str, Any]:
    """Return the configuration that a run followed; real workers follow the testbed's law."""
    if run.info.get("kind") != "testbed":
        return run.config
    return {**run.config, "engine": {**(run.config.get("engine") or {}), "timing": TestbedLaw.name}}


def _reading_text(label: str, values: dict[str, list[str]], total: int) -> str:
    if sum(map(len, values.values())) == total:
        return f"{label} {', '.join(values)}"
    return f"{label} " + ", ".join(
        f"{value} ({', '.join(dict.fromkeys(names))})" for value, names in values.items()
    )


def diverged_round(run: RunData) -> int | None:
    """Return the round whose evaluation ended a run as diverged; None if none did.

    No evaluation ends a testbed.
    """
    if run.info.get("kind") == "testbed":
        return None
    limit = (run.config.get("stop") or {}).get("diverged", 0.0)
    return stopping.diverged_round(limit, run.records)


def run_status(run: RunData) -> str:
    """Return finished, failed, interrupted, running or diverged in round T.

    A run without a process is interrupted.
    """
    recorded = str(run.info.get("status") or "unknown")
    if recorded == "finished" and (diverged := diverged_round(run)) is not None:
        return f"diverged in round {diverged}"
    return "interrupted" if recorded == "running" and is_abandoned(run.path) else recorded


def rerun_command(run: RunData) -> str:
    """Return the command that repeats the run."""
    verb = "testbed" if run.info.get("kind") == "testbed" else "run"
    return f"dystop {verb} {shlex.quote(str(run.path / 'config.toml'))}"


def resume_command(run: RunData) -> str:
    """Return the command that resumes an interrupted run."""
    words = "testbed --resume" if run.info.get("kind") == "testbed" else "resume"
    return f"dystop {words} {shlex.quote(str(run.path))}"


def check_command(run: RunData) -> str:
    """Return the command that checks the records of a run."""
    verb = "check" if run.info.get("kind") == "testbed" else "verify"
    return f"dystop {verb} {shlex.quote(str(run.path))}"
