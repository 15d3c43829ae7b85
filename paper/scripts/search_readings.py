"""Search the readings of the paper on one machine with many cores and a GPU.

    python paper/scripts/search_readings.py OUT --samples 28 --best 4 --jobs 14 --minutes 8.5
    python paper/scripts/search_readings.py OUT --scale small --only main-cifar10 --jobs 14

First the search at small scale on the cores, then the presets and the nearest samples at paper
scale; with `--scale small` the first of these alone, of the parts that `--only` names. It does what
`dystop reproduce readings` does, but every process runs many runs, one after the other: libraries
and the GPU are started once per process. What has finished when the time is over is reported; the
tables and pages lie in OUT/SCALE/readings, and the same command goes on from there.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import TimeoutError as NotReady
from multiprocessing import get_context
from pathlib import Path

import click
import torch

from dystop.config import read_experiment
from dystop.runs.run import resume_run, run_experiment
from dystop.studies.study import Study
from dystop_paper.pages.readings import write_search
from dystop_paper.reproduce.campaigns import Scale
from dystop_paper.reproduce.reading_runs import (
    Asked,
    ReadingRun,
    search_folder,
    search_runs,
    study_of_runs,
)
from dystop_paper.reproduce.reading_space import Reading, presets, sample

CORE = ("main-fmnist", "planned")
ON_CORES = ("training.device=cpu", "training.lanes=1")  # every process has a core of its own


def _ignore(_: object) -> None:
    """Follow no run: this program shows finished runs only."""


def use_one_thread() -> None:
    """Give this process one thread of torch: with one for every core in each, all of them wait."""
    torch.set_num_threads(1)


def run_one(work: tuple[Path, Path]) -> str:
    """Run or resume the plan of one run; return its name, and the error if it failed."""
    plan, out = work
    try:
        if (out / plan.stem).exists():  # it was cut off
            resume_run(out / plan.stem, _ignore, _ignore)
        else:
            run_experiment(read_experiment(plan), out, plan.stem, _ignore, _ignore)
    except KeyboardInterrupt:  # the time is over; the run has saved what it has
        sys.exit(1)
    except Exception as error:
        return f"{plan.stem}: {type(error).__name__}: {error}"
    return plan.stem


def run_until(study: Study, jobs: int, end: float) -> None:
    """Run what is left of a study in several processes, until it is done or the time is over."""
    work = [(study.plan(e), study.path) for e in study.todo()]
    begun = time.monotonic()
    with get_context("spawn").Pool(jobs, use_one_thread) as pool:
        results = pool.imap_unordered(run_one, work)
        for done in range(1, len(work) + 1):
            try:
                name = results.next(timeout=max(0.0, end - time.monotonic()))
            except NotReady:
                click.echo(f"time is over: {done - 1} of {len(work)} runs finished")
                break
            click.echo(f"{time.monotonic() - begun:6.1f} s  {done}/{len(work)}  {name}")
        pool.terminate()


def search(
    runs: Sequence[ReadingRun], scale: Scale, out: Path, jobs: int, end: float
) -> list[Reading]:
    """Run a search at one scale and write its page; return its readings, nearest first."""
    if not runs:
        sys.exit("--only matches no run; a part is named as in main-fmnist or literal.planned")
    folder = search_folder(out, scale)
    study = study_of_runs(runs, folder)
    run_until(study, jobs, end)
    report = write_search(study, runs, scale, "python paper/scripts/search_readings.py", folder)
    if report is None:
        click.echo(f"{scale}: no reading is complete")
        return []
    click.echo(f"{scale}: {report.files.html}")
    return [result.reading for result in report.ranked]


def main() -> None:
    """Run both searches within the given time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=28, help="0: the presets alone")
    parser.add_argument("--best", type=int, default=4)
    parser.add_argument("--seeds", type=int, help="by default 1 at small scale, else 3")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--small-minutes", type=float, default=2.0, help="of these, at most")
    parser.add_argument("--scale", choices=("smoke", "small", "paper"), default="paper")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="for the trained runs")
    given = parser.parse_intermixed_args()
    begun, words, only = time.monotonic(), tuple(given.words), tuple(given.only)
    end = begun + 60 * given.minutes
    tried = [*presets(), *map(sample, range(1, given.samples + 1))]
    if given.scale == "small":
        asked = Asked("small", given.seeds or 1, (*ON_CORES, *words), only or CORE)
        search(search_runs(tried, asked), "small", given.out, given.jobs, end)
        return
    first: Scale = "smoke" if given.scale == "smoke" else "small"
    ranked: list[Reading] = []
    if given.samples:
        small = Asked(first, 1, ON_CORES, CORE)
        early = min(end, begun + 60 * given.small_minutes)
        ranked = search(search_runs(tried, small), first, given.out, given.jobs, early)
    samples = [reading for reading in ranked if not reading.is_preset]
    nearest = [*presets(), *samples[: given.best]]
    asked = Asked(given.scale, given.seeds or 3, words, only)
    search(search_runs(nearest, asked), given.scale, given.out, given.jobs, end)


if __name__ == "__main__":
    main()
