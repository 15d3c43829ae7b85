"""Six honest workers beside one hostile member of each kind, and what the honest ones lose by it.

    python scripts/hostile_soak.py --minutes 15 --pairs 3 --seed 0 --out DIR      (Linux)

A run with the hostile members and a control run without them get the same faults: an honest worker
is killed every 20 s, one is frozen for 8 s every minute, and the coordinator is killed in the first
two minutes, so that its second life is long enough to measure its memory. Both follow one another
`--pairs` times, each pair with a seed of its own; of the pairs' shares the median counts.

All parties are processes on loopback. Honest ones run on one half of the cores in both runs, and
hostile ones on the other half: an attacker brings its own computer, and the pace shows what its
messages cost, not its processor time. DIR gets a folder for each pair and
`hostile-soak.json`, which says what was measured and which guarantees were broken. Nothing is left
running, also after Ctrl-C.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from chaos.drill import member_states, named_members  # noqa: E402
from chaos.facts import SAMPLES, WARM_S  # noqa: E402
from chaos.rig import Rig, Setting  # noqa: E402
from chaos.schedule import FaultRates, schedule  # noqa: E402
from dystop.testbed.names import COORDINATOR  # noqa: E402

HONEST = 6
HOSTILE = (  # one member of each kind
    "half_open", "large_reports", "padded_reports", "busy", "accuse", "served_number",
    "over_report", "renumber", "trickle",
)  # fmt: skip
FAULTS = FaultRates(kill_every_s=20, cut_every_s=0, freeze_every_s=60, coordinator_kills=0)
EARLY = FaultRates(0, 0, 0, 0, 0, coordinator_kills=1)
EARLY_S = 120.0
PACE, MEMORY, LEDGER = 0.6, 1e6, 4096.0  # share; bytes per 1,000 rounds; bytes per closed round
START_S = 300.0
CORES = sorted(os.sched_getaffinity(0))
WHOLE, CONTROL = "hostile", "control"


def main() -> int:
    """Run what was asked for; 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=(WHOLE, CONTROL), help="one of the two runs")
    args = parser.parse_args()
    pairs = [args.out / f"pair-{k}" for k in range(args.pairs)]
    for k, pair in enumerate(pairs):
        pair.mkdir(parents=True, exist_ok=True)
        for name in (WHOLE, CONTROL):
            if args.only in (None, name):
                facts = soak(args, pair, args.seed + k, name, HOSTILE if name == WHOLE else ())
                (pair / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    summary = verdict(pairs)
    text = json.dumps(summary, indent=1) + "\n"
    (args.out / "hostile-soak.json").write_text(text)
    sys.stdout.write(text)
    return 1 if summary["broken"] else 0


def soak(args: Any, out: Path, seed: int, name: str, attacks: tuple[str, ...]) -> dict[str, Any]:
    """Run one testbed for some minutes and measure it."""
    hostile = {f"w{HONEST + k:02d}": attack for k, attack in enumerate(attacks)}
    keys = (
        f"fleet.workers={HONEST + len(hostile)}", f"seed={seed}", "data.name=synthetic",
        "model.name=softmax", "world.range_m=300", "testbed.links=free", "stop.rounds=10000000",
        "evaluate.every_rounds=50",
    )  # fmt: skip
    setting = Setting(keys, hostile=hostile, restart_s=1.0, seed=seed)
    own, others = halves(CORES)
    os.sched_setaffinity(0, own)  # and of all processes that it starts
    with Rig(out, setting, f"{name}-run") as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 20 and rig.joined == HONEST + len(hostile), START_S)
        for member in hostile:
            move(rig.supervisor.pid(member), others)
            rig.supervisor.signal(member, signal.SIGUSR1)
        first, began_s, span_s = rig.rounds, time.monotonic(), 60.0 * args.minutes
        early = schedule(EARLY, 0.0, min(EARLY_S, span_s), seed)
        rig.inject(sorted([*early, *schedule(FAULTS, 0.0, span_s, seed)], key=lambda f: f.at_s))
        sizes: list[tuple[int, int]] = []  # closed rounds, and bytes of the ledger by then
        while time.monotonic() - began_s < span_s:
            rig.spend(10.0)
            sizes.append((rig.rounds, ledger_bytes(rig.folder)))
            _say(f"{name}: {time.monotonic() - began_s:.0f} s, round {rig.rounds}")
        wall_s, last = time.monotonic() - began_s, rig.rounds
        states, named = member_states(rig), named_members(rig)
        rig.stop()
        return {
            "wall_s": round(wall_s, 1),
            "rounds": last - first,
            "trainings": _trainings(rig, first, last),
            "states": states,
            "hostile": hostile,
            "unnamed": sorted(set(hostile) - set.intersection(*named.values())),
            "numbers": [record.round for record in rig.records] == [*range(1, rig.rounds + 1)],
            "faults": rig.done,
            "memory": memory_growth(rig),
            "ledger": slope(sizes[len(sizes) // 3 :]),
            "findings": [text for text in map(str, rig.findings()) if not _of(hostile, text)],
        }


def halves(cores: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the cores of honest parties and those of hostile ones; a single one is shared."""
    cut = -(-len(cores) // 2)
    return set(cores[:cut]), set(cores[cut:] or cores)


def move(pid: int | None, cores: set[int]) -> None:
    """Move all threads of a process; those that it starts later follow."""
    for task in Path(f"/proc/{pid}/task").iterdir() if pid else ():
        with suppress(ProcessLookupError):  # a thread that ends right now
            os.sched_setaffinity(int(task.name), cores)


def slope(points: list[tuple[int, int]]) -> float:
    """Return by how much the second number grows with the first."""
    first, second = np.array(points, float).T
    return float(np.polyfit(first, second, 1)[0]) if np.ptp(first) else 0.0


def _of(hostile: Mapping[str, str], finding: str) -> bool:
    """Return whether a finding is about a hostile process: its threads are its own affair."""
    names = {*hostile, *(f"node {int(name[1:])}" for name in hostile)}
    return any(f" {name} reached " in finding for name in names)


def _trainings(rig: Rig, first: int, last: int) -> int:
    """Return how often honest workers were active between two rounds."""
    chosen = (record for record in rig.records if first < record.round <= last)
    return sum(node < HONEST for record in chosen for node in record.get("active_ids") or ())


def memory_growth(rig: Rig) -> float | None:
    """Return by how many bytes the coordinator grows in 1,000 rounds, in its longest life.

    A young process still loads modules, and each of its threads takes memory of its own.
    """
    lines = [json.loads(line) for line in (rig.folder / SAMPLES).read_text().splitlines()]
    lives: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        if line["name"] == COORDINATOR:
            lives.setdefault(line["pid"], []).append((line["at_s"], line["rss_bytes"]))
    at_s, rss = np.array(max(lives.values(), key=len)).T
    old = at_s > at_s[0] + WARM_S
    if np.count_nonzero(old) < 20:
        return None
    per_s = float(np.polyfit(at_s[old], rss[old], 1)[0])
    rounds_per_s = rig.rounds / lines[-1]["at_s"]
    return 1000 * per_s / rounds_per_s


def ledger_bytes(folder: Path) -> int:
    """Return the bytes of the ledger, its archive and their backups."""
    found = 0
    for path in (*folder.glob("state.*"), *folder.glob("backups/*")):
        with suppress(FileNotFoundError):  # an old backup that goes right now
            found += path.stat().st_size
    return found


def verdict(pairs: Sequence[Path]) -> dict[str, Any]:
    """Compare what was measured with the guarantees; for the pace the median counts."""
    every = [
        {name: json.loads((pair / f"{name}.json").read_text()) for name in names}
        for pair in pairs
        if (names := [n for n in (WHOLE, CONTROL) if (pair / f"{n}.json").exists()])
    ]
    broken = [text for runs in every for name in runs for text in _broken(name, runs[name])]
    paces = [
        {name: run["trainings"] / run["wall_s"] for name, run in runs.items()} for runs in every
    ]
    shares = [pace[WHOLE] / pace[CONTROL] for pace in paces if len(pace) == 2]
    summary: dict[str, Any] = {"runs": every, "pace": paces, "shares": shares, "broken": broken}
    if shares:
        summary["share"] = share = float(np.median(shares))
        if share < PACE:
            broken.append(f"honest workers keep {share:.2f} of their pace")
    return summary


def _broken(name: str, facts: Mapping[str, Any]) -> list[str]:
    found = [f"{name}: {text}" for text in facts["findings"]]
    if facts["unnamed"]:
        found.append(f"{name}: nobody names {', '.join(facts['unnamed'])}")
    if not facts["numbers"]:
        found.append(f"{name}: records are missing or out of order")
    if facts["memory"] is None:
        found.append(f"{name}: the memory of the coordinator was not measured for long enough")
    elif facts["memory"] > MEMORY:
        found.append(
            f"{name}: the coordinator grows by {facts['memory'] / 1e6:.1f} MB a 1,000 rounds"
        )
    if facts["ledger"] > LEDGER:
        found.append(f"{name}: the ledger takes {facts['ledger']:.0f} bytes a round")
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing is left running")
