"""Rounds per second of honest workers beside a hostile member, against a control.

The control is the same testbed in which the same process stays honest and burns as much processor
time as the attack took. Both are measured in the same way: rounds that the ledger has closed within
`MEASURE_S` seconds. Before, the others have `SETTLE_S` seconds to find a way around the member. In
a control there is nothing to find.
"""

import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.storage import try_read_json
from dystop.testbed.audit.check import Finding
from dystop.testbed.coordinator.conduct.incidents import entry_from_json
from dystop.testbed.ledger.tables import INCIDENT
from dystop.testbed.setup.enrolment import INCIDENTS

from .rig import QUICK, Rig, Setting

WORKERS = 8
KEYS = (*QUICK, f"fleet.workers={WORKERS}", "stop.rounds=1000000", "evaluate.every_rounds=50")
IDLE_S = 8.0
SETTLE_S = 30.0  # in which the others must have found a way around the member
CONTROL_SETTLE_S = 3.0
MEASURE_S = 20.0
START_S = 180.0


@dataclass(frozen=True)
class Pace:
    """What was measured in one testbed."""

    idle: float  # rounds per second before the attack
    during: float  # rounds per second once the others have had `SETTLE_S` seconds
    cpu: float  # cores that the hostile processes used during the attack
    states: Mapping[str, str]  # state of every member at the end
    named: Mapping[str, set[str]]  # where a member is named -> the members
    restarts: int  # of the coordinator
    rss_mib: float  # of the coordinator, at most
    findings: list[Finding] = field(default_factory=list)
    folder: Path = Path()

    def __str__(self) -> str:
        return f"{self.idle:.1f} -> {self.during:.1f} rounds/s, hostile {self.cpu:.2f} cores"


def measure(
    out: Path,
    hostile: Mapping[str, str],
    name: str,
    keys: tuple[str, ...] = (),
    settle_s: float = SETTLE_S,
    measure_s: float = MEASURE_S,
) -> Pace:
    """Run a testbed with hostile members (name -> attack) and measure the others."""
    setting = Setting((*KEYS, *keys), hostile=hostile, restart_s=1.0)
    with Rig(out, setting, name) as rig:
        rig.start()
        rig.until(lambda: closed_rounds(rig) > 20 and rig.joined == WORKERS, START_S)
        idle = _pace(rig, IDLE_S)
        for member in hostile:
            rig.supervisor.signal(member, signal.SIGUSR1)
        began_s, used_s = time.monotonic(), cpu_s(rig, hostile)
        rig.spend(settle_s)
        during = _pace(rig, measure_s)
        cpu = (cpu_s(rig, hostile) - used_s) / (time.monotonic() - began_s)
        states, named = member_states(rig), named_members(rig)
        restarts = rig.supervisor.children["coordinator"].starts - 1
        rss = rig.sampler.most["coordinator"]["rss_bytes"] / 2**20
        rig.stop()
        return Pace(
            idle, during, max(cpu, 0.0), states, named, restarts, rss, rig.findings(), rig.folder
        )


def closed_rounds(rig: Rig) -> int:
    """Return how many rounds the ledger has closed."""
    return int(
        _query(rig, "SELECT ifnull(max(round), 0) FROM rounds WHERE closed_s IS NOT NULL")[0][0]
    )


def member_states(rig: Rig) -> dict[str, str]:
    """Return the state of every member as the ledger knows it."""
    return {str(name): str(state) for name, state in _query(rig, "SELECT name, state FROM workers")}


def named_members(rig: Rig) -> dict[str, set[str]]:
    """Return the members that ledger, dashboard and log name for an incident."""
    rows = _query(rig, f"SELECT value FROM kept WHERE key LIKE '{INCIDENT}%'")
    shown = try_read_json(rig.folder / INCIDENTS)
    log = (rig.folder / "logs" / "coordinator.log").read_text(errors="replace")
    return {
        "ledger": {entry_from_json(bytes(value)).member for (value,) in rows},
        "dashboard": {str(row["member"]) for row in shown.get("incidents", [])},
        "log": set(re.findall(r"incident: (\w+): ", log)),
    }


def _query(rig: Rig, text: str) -> list[tuple[Any, ...]]:
    path = rig.folder / "state.db"
    if not path.exists():
        return [(0,)]
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        return base.execute(text).fetchall()
    finally:
        base.close()


def _pace(rig: Rig, seconds: float) -> float:
    before, began_s = closed_rounds(rig), time.monotonic()
    rig.spend(seconds)
    return (closed_rounds(rig) - before) / (time.monotonic() - began_s)


def cpu_s(rig: Rig, names: Iterable[str]) -> float:
    """Return the processor seconds that processes have used."""
    total = 0.0
    for name in names:
        pid = rig.supervisor.pid(name)
        if pid is not None:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
