"""What things are called: runs, mechanisms with their provenance, settings in plain words."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dystop.experiments.run_folder import RunData, is_abandoned
from dystop.types import FAITHFUL

TIMING = {
    "paper": "paper: a round lasts until its slowest active worker has pulled, and nothing else "
    "moves the clock (eq:duration)",
    "overlap": "overlap: transfers of different workers overlap, and the next round opens when "
    "the mechanism may next act",
}
PUBLISH = {
    "eager": "eager: a pull returns the newest model even while its training would still be "
    "running (the paper's equations)",
    "on_completion": "on_completion: a pull returns the last finished model, as on real workers",
}


@dataclass(frozen=True)
class Identity:
    """Which mechanism a run used, and how far its code can be trusted to be the published one."""

    name: str
    mode: str
    provenance: str
    summary: str

    @property
    def title(self) -> str:
        """Name with provenance, for tables."""
        return f"{self.name} ({self.provenance})" if self.provenance else self.name

    @property
    def caveat(self) -> str:
        """Provenance in brackets where it is not the source itself, for legends."""
        plain = not self.provenance or self.provenance in FAITHFUL
        return "" if plain else f" ({self.provenance})"

    @property
    def doubtful(self) -> bool:
        """Whether it stands for a published mechanism that could not be followed exactly."""
        return bool(self.caveat) and self.provenance != "reference"


def identity(run: RunData) -> Identity:
    """The mechanism of a run; the configuration stands in where run.json is silent."""
    told = run.info.get("mechanism") or {}
    told = told if isinstance(told, dict) else {"name": told}
    name = told.get("name") or _configured(run).get("name") or "unknown mechanism"
    return Identity(
        str(name),
        str(told.get("mode") or ""),
        str(told.get("provenance") or ""),
        str(told.get("summary") or ""),
    )


def clock_name(runs: Sequence[RunData]) -> str:
    """What the clock of these runs shows: on the testbed seconds really pass."""
    real = {run.info.get("kind") == "testbed" for run in runs}
    if len(real) > 1:
        return "time"
    return "measured time" if real == {True} else "simulated time"


def _configured(run: RunData) -> dict[str, object]:
    block = run.config.get("mechanism")
    return block if isinstance(block, dict) else {}


def staleness_bound(run: RunData) -> float | None:
    """The staleness bound of the mechanism, where it has one."""
    bound = _configured(run).get("staleness_bound")
    return float(bound) if isinstance(bound, (int, float)) else None


def labels(runs: Sequence[RunData], longest: int = 34) -> list[str]:
    """One distinct label per run; says what is a reconstruction, numbers runs of equal name."""
    plain = [_label(run, longest) for run in runs]
    total, seen = Counter(plain), Counter[str]()
    out = []
    for text in plain:
        seen[text] += 1
        out.append(f"{text} #{seen[text]}" if total[text] > 1 else text)
    return out


def _label(run: RunData, longest: int) -> str:
    """Run name, then the mechanism unless the name says it; only the run name is ever cut."""
    mechanism = identity(run)
    name = run.name if len(run.name) <= longest else run.name[: longest - 1] + "…"
    said = mechanism.name.lower() in name.lower()
    return name + ("" if said else f" · {mechanism.name}") + mechanism.caveat


def workers(run: RunData) -> int:
    """Number of workers of a run."""
    known = len(run.fleet.get("data_size") or run.fleet.get("label_counts") or ())
    return known or max((r.alive for r in run.records), default=0)


def timing_words(run: RunData) -> str:
    """The timing law in a sentence; on the testbed time needs none."""
    if run.info.get("kind") == "testbed":
        return "measured: seconds as they passed on real processes"
    value = str(run.info.get("timing") or "not recorded")
    return TIMING.get(value, value)


def publish_words(run: RunData) -> str:
    """The publish rule in a sentence."""
    value = str(run.info.get("publish") or "not recorded")
    return PUBLISH.get(value, value)


def command(run: RunData) -> str:
    """The command that repeats the run."""
    verb = "testbed" if run.info.get("kind") == "testbed" else "run"
    return f"dystop {verb} {shlex.quote(str(run.path / 'config.toml'))}"


def status(run: RunData) -> str:
    """finished, failed, interrupted or running; a run whose process is gone was interrupted."""
    noted = str(run.info.get("status") or "unknown")
    return "interrupted" if noted == "running" and is_abandoned(run.path) else noted


def way_on(run: RunData) -> str:
    """The command that goes on with an interrupted run."""
    words = "testbed --resume" if run.info.get("kind") == "testbed" else "resume"
    return f"dystop {words} {shlex.quote(str(run.path))}"


def check(run: RunData) -> str:
    """The command that says whether the records are to be believed."""
    verb = "check" if run.info.get("kind") == "testbed" else "verify"
    return f"dystop {verb} {shlex.quote(str(run.path))}"


# MERGED: Settings of runs as the pages of a sweep need them: values, their order, and words for
#   them.


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
