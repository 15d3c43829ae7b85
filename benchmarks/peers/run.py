"""The same work by ours, by its neighbours and by a plain loop, in one run; prints the ratios.

    python benchmarks/peers/run.py --rounds 3 --repeat 2

100 workers, 600 images of Fashion-MNIST each, the CNN of 21,840 parameters, batch 32, plain SGD,
one local epoch per worker and round, no evaluation. Every peer gets a virtual environment of its
own; each of its runs lies between two of the plain loop, beside one of ours. A peer that fails is
shown as failed and does not stop the others.
"""

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments import EnvironmentFailed, python_of
from launch import QUIET, Run, launch
from material import data_file, images_in
from rich.console import Console
from table import OURS, PLAIN, Group, rows, table_of
from watch import wait_for_quiet

HERE = Path(__file__).parent
PEERS = ("flower", "pfl", "fedjax", "p2pfl", "fluke")
console = Console(stderr=True)


@dataclass(frozen=True)
class Setting:
    """What is run, and where."""

    data: Path
    environments: Path
    workers: int
    rounds: int
    limit_s: float
    patience_s: float = 0.0
    retries: int = 0

    def command(self, python: Path | str, script: Path) -> list[str]:
        """The command line of a child."""
        work = {"data": self.data, "workers": self.workers, "rounds": self.rounds}
        flags = [word for key, value in work.items() for word in (f"--{key}", str(value))]
        return [str(python), str(script), *flags]


def measure(setting: Setting, name: str, script: Path, python: Path | str = sys.executable) -> Run:
    """One child; once more, as often as allowed, if others kept the machine busy meanwhile."""
    images = images_in(setting.data) // setting.workers
    tries: list[Run] = []
    for _ in range(1 + setting.retries):
        wait_for_quiet(setting.patience_s)
        console.print(f"{name} ... ", end="")
        run = launch(name, setting.command(python, script), images, setting.limit_s)
        rounds = f"{len(run.rates)} of {len(run.images_per_s)} rounds"
        done = f"{run.rate:,.0f} images/s in {rounds}, others used {run.others:.0%} of the machine"
        console.print("failed" if run.error else done, highlight=False)
        tries.append(run)
        if run.error or run.others <= QUIET:
            return run
    return min(tries, key=lambda run: run.others)  # chosen by how quiet it was, not by its speed


def measure_peer(setting: Setting, name: str) -> Run:
    """A peer, in its environment."""
    try:
        python = python_of(name, setting.environments)
    except EnvironmentFailed as error:
        console.print(f"{name} ... cannot be installed")
        return Run(name, error=f"cannot be installed\n{error}")
    return measure(setting, name, HERE / f"peer_{name}.py", python)


def measure_all(setting: Setting, names: Sequence[str], repeat: int) -> list[Group]:
    """Plain loop, peer, ours, plain loop, peer, ours, ..., plain loop."""
    groups, before = [], measure(setting, PLAIN, HERE / "plain.py")
    for name in list(names) * repeat:
        peer = measure_peer(setting, name)
        ours = measure(setting, OURS, HERE / "dystop_run.py")
        after = measure(setting, PLAIN, HERE / "plain.py")
        groups.append(Group(before, peer, ours, after))
        before = after
    return groups


def machine() -> dict[str, object]:
    """What the numbers were measured on, and how busy it was."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after one to warm up")
    parser.add_argument("--repeat", type=int, default=2, help="runs of every peer")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--only", default=",".join(PEERS), help="peers, as in flower,fluke")
    parser.add_argument("--data", type=Path, help=".npz of the images; made if missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    parser.add_argument("--environments", type=Path, default=HERE.parents[1] / ".venv-peers")
    parser.add_argument("--limit", type=float, default=1200, help="seconds a child may take")
    parser.add_argument(
        "--patience", type=float, default=0, help="seconds to wait for a quiet machine, each time"
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        help="repeat a run in which no round was quiet",
    )
    args = parser.parse_args(words)
    args.only = [name.strip() for name in args.only.split(",")]
    if unknown := sorted(set(args.only) - set(PEERS)):
        parser.error(f"--only {','.join(unknown)}: unknown; known are {', '.join(PEERS)}")
    return args


def main() -> int:
    """Measure, print, and say by the exit code whether everything ran."""
    args = arguments()
    folder = args.environments.resolve()
    data = data_file((args.data or folder / "fashion-mnist.npz").resolve())
    setting = Setting(
        data, folder, args.workers, args.rounds, args.limit, args.patience, args.retries
    )
    about = machine()
    groups = measure_all(setting, args.only, args.repeat)
    lines = rows(groups)
    Console(width=max(Console().width, 140)).print(table_of(lines))
    for row in lines:
        if row.error:
            print(f"\n{row.name}: {row.error}")
    if args.json:
        write_json(args.json, about, setting, groups)
    return int(any(row.error for row in lines))


def write_json(file: Path, about: dict[str, object], setting: Setting, groups: list[Group]) -> None:
    """All runs, in order, and the table."""
    runs = [run for g in groups for run in (g.before, g.peer, g.ours)] + [groups[-1].after]
    content = {
        "machine": about,
        "workers": setting.workers,
        "rounds": setting.rounds,
        "runs": [asdict(run) for run in runs],
        "table": [asdict(row) for row in rows(groups)],
    }
    file.write_text(json.dumps(without_nan(content), indent=1) + "\n")


def without_nan(value: Any) -> Any:
    """The same with None for NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    sys.exit(main())
