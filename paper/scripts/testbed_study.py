"""Run the paper's testbed study with real processes, several mechanisms side by side.

    python paper/scripts/testbed_study.py OUT --phi 0.5 --seconds 1000 testbed.time_scale=0.4

Each mechanism is one `dystop testbed` with the settings of the recipes `fig-testbed-*`: 15 workers
as the paper's five classes of boards, emulated links, the reading of the recipe. A run that is not
over when its time ends is interrupted and keeps what it has recorded. Afterwards every run is
checked (`dystop check`), simulated (`dystop gap`), and compared on one page (`dystop report`).
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from dystop.config import to_toml
from dystop_paper.reproduce.campaigns import CAMPAIGNS, experiments, phi_key

GRACE_S = 30.0  # for an interrupted run to save what it has


def command(*words: str | Path) -> list[str]:
    """Return the command line of a `dystop` command in this environment."""
    return [sys.executable, "-m", "dystop", *map(str, words)]


def write_settings(args: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Write the configuration of every mechanism; return the files by the name of their run."""
    campaign = CAMPAIGNS[f"testbed-{args.data}"]
    words = (f"stop.seconds={args.seconds}", "engine.publish=on_completion", *args.words)
    every = {e.name: e for e in experiments(campaign, args.scale, 1, words)}
    files = {}
    for mechanism in args.mechanisms.split(","):
        name = f"{phi_key(mechanism, args.phi)}-s0"
        files[name] = folder / f"{name}.toml"
        files[name].write_text(to_toml(every[name]), encoding="utf-8")
    return files


def run_side_by_side(files: dict[str, Path], out: Path, end: float) -> None:
    """Run all testbeds at once, until they are over or the time ends."""
    running = {}
    for name, file in files.items():
        log = (out / f"{name}.log").open("w", encoding="utf-8")
        asked = command("testbed", file, "--out", out, "--name", name, "--no-report")
        running[name] = subprocess.Popen(asked, stdout=log, stderr=subprocess.STDOUT)
    for process in running.values():
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    for name, process in running.items():
        try:
            click.echo(f"{name}: exit code {process.wait(GRACE_S)}")
        except subprocess.TimeoutExpired:
            process.kill()
            click.echo(f"{name}: killed")


def judge(names: list[str], out: Path, end: float) -> None:
    """Check and simulate every run, at the same time; then write the page that compares them."""
    running = []
    for name in names:
        for word, more in (("check", ()), ("gap", ("--json", out / f"{name}.gap.json"))):
            log = (out / f"{name}.{word}").open("w", encoding="utf-8")
            asked = command(word, out / name, *more)
            running.append(subprocess.Popen(asked, stdout=log, stderr=subprocess.STDOUT))
    for process in running:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    folders = [out / name for name in names]
    subprocess.run(command("report", *folders, "--out", out / "report"), check=False)


def main() -> None:
    """Run, check, simulate and compare within the given time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", choices=("svhn", "cifar100"), default="svhn")
    parser.add_argument("--phi", type=float, choices=(1.0, 0.5), default=0.5)
    parser.add_argument("--mechanisms", default="dystop,asydfl,sa-adfl,matcha")
    parser.add_argument("--seconds", type=float, default=1000.0, help="emulated")
    parser.add_argument("--minutes", type=float, default=60.0, help="of all runs together")
    parser.add_argument("--judge-minutes", type=float, default=10.0, help="for gap, afterwards")
    parser.add_argument("--scale", choices=("smoke", "paper"), default="paper")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    files = write_settings(args, args.out)
    run_side_by_side(files, args.out, begun + 60 * args.minutes)
    judge(list(files), args.out, time.monotonic() + 60 * args.judge_minutes)


if __name__ == "__main__":
    main()
