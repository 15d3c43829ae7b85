"""Plan the runs of a results page again, without training, and say which of them are unchanged.

    python paper/scripts/replan_runs.py docs/results/large/runs.csv reading=none \
        --data cifar10=cifar10.npz --data cifar100=cifar100.npz --data svhn=svhn.npz

Decisions, times and traffic of most mechanisms do not depend on models. A run whose rounds, clock,
bytes and passes over the data are those of the page would make the same decisions today; a
mechanism or a setting that was mended since shows up as a difference. Models are not compared. The
exit code is the number of runs that differ, 100 at most.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dystop.config import Experiment
from dystop.runs.building import build
from dystop.simulator import no_round, run_rounds
from dystop.simulator.round import begin
from dystop_paper.reproduce.campaigns import CAMPAIGNS, experiments

Row = dict[str, str]


@dataclass(frozen=True)
class Planned:
    """What a run has spent at its end."""

    rounds: int
    clock_s: float
    wire_bytes: int
    epochs: float

    def __str__(self) -> str:
        wire = f"{self.wire_bytes / 1e9:,.1f} GB"
        return f"{self.rounds} rounds, {self.clock_s:,.2f} s, {wire}, {self.epochs} passes"


def written(row: Row) -> Planned:
    """Return what the page has."""
    return Planned(
        int(row["rounds"]), float(row["clock_s"]), int(row["wire_bytes"]), float(row["epochs"])
    )


def planned(experiment: Experiment) -> Planned:
    """Plan a run to its end."""
    components = build(experiment).components
    for record, _ in run_rounds(components, begin(components), no_round):
        last = record
    epochs = round(last.epochs_total, 2)
    return Planned(last.round, round(last.clock_s, 2), last.wire_bytes_total, epochs)


def compared(
    rows: list[Row], words: tuple[str, ...], data: dict[str, str]
) -> Iterator[tuple[str, Planned, Planned]]:
    """Yield every run, what the page has, and what is planned now."""
    for campaign, group in itertools.groupby(rows, key=lambda row: row["campaign"]):
        name = data.get(campaign.rpartition("-")[2])
        own = (*words, "engine.train=false", *([f"data.name={name}"] if name else []))
        every = {e.name: e for e in experiments(CAMPAIGNS[campaign], "paper", 1, own)}
        for row in group:
            run = f"{row['arm']}-s{row['seed']}"
            yield f"{campaign}/{run}", written(row), planned(every[run])


def main() -> int:
    """Compare every run of the page; return how many differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", type=Path, help="runs.csv of a results page")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    data: dict[str, Any] = dict(pair.split("=", 1) for pair in args.data)
    with args.runs.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    different = 0
    for run, before, now in compared(rows, tuple(args.words), data):
        different += before != now
        click.echo(f"{run}: {now}" + ("" if before == now else f"; the page has {before}"))
    click.echo(f"{len(rows) - different} of {len(rows)} runs are unchanged")
    return min(different, 100)


if __name__ == "__main__":
    sys.exit(main())
