"""Does `dystop advise` name the mechanism that a full study finds?

    python benchmarks/advise.py --out FOLDER --processes 10 --limit 480

Ten worlds are drawn from a seed: compute spread, communication, skew, density, churn and timing
law. In each of them every mechanism runs with three seeds, three times as long as the longest
trials of `dystop advise`, and `dystop advise` gives its advice. FOLDER/verdicts.csv
gets a row per world and goal as soon as all its runs have finished, FOLDER/curves.json every
evaluation of every run. The command resumes what --runs holds.
"""

import argparse
import csv
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from dystop.config import read_experiment
from dystop.folders.run_folder import open_run
from dystop.report.data.contests.winners import all_contests, best_of, common_target, contenders_of
from dystop.report.data.contests.winners import lead as lead_of
from dystop.report.data.groups import group_runs
from dystop.report.data.summary import evaluated_rounds
from dystop.rng import stream
from dystop.runs.run import resume_run, run_experiment
from dystop.studies.compare import Comparison, experiments
from dystop.studies.study import create_study, find_study, finished
from dystop.studies.trials import TURNS, horizon_s, shortened
from dystop.studies.worlds import AXES

WORLDS = 10
LONGER = 3  # times the longest trials
SEEDS = 3
COMMON = [
    "fleet.workers=30",
    "world.area_m=[100, 100]",
    "data.train_limit=3000",
    "model.name=softmax",
    "model.wire_bytes=87360",  # those of the paper's CNN
    "evaluate.samples=200",
    "training.device=cpu",
    "training.lanes=1",
    "world.churn.mean_down_s=3",
]
COLUMNS = (
    "world", "timing", *AXES, "target", "goal", "winner", "tied", "advised", "verdict",
    "rank", "factor", "advise_cpu_s", "study_cpu_s",
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """One world: its place on every axis, and its settings."""

    number: int
    place: dict[str, float]
    timing: str

    @property
    def words(self) -> list[str]:
        found = [*COMMON, f"engine.timing={self.timing}"]
        found.append(f"seed={100 * (self.number + 1)}")
        for name in ("spread", "skew", "density", "churn", "communication"):  # its keys depend
            found += AXES[name].words(read_experiment(None, found), self.place[name])
        return found


def worlds(seed: int, count: int) -> list[World]:
    """Draw worlds; the two laws take turns."""
    found = []
    for k in range(count):
        draw = stream(seed, "advise", k)
        place = {
            "spread": round(draw.uniform(0.0, 0.9), 2),
            "communication": round(math.exp(draw.uniform(math.log(0.1), math.log(10))), 2),
            "skew": round(math.exp(draw.uniform(math.log(0.1), math.log(1.5))), 2),
            "density": round(draw.uniform(6, 29), 1),
            "churn": round(max(0.0, draw.uniform(-0.3, 0.3)), 2),
        }
        found.append(World(k, place, ("paper", "overlap")[k % 2]))
    return found


def study_of(world: World, runs: Path):
    """Return the full study of a world, created if missing."""
    every = experiments(Comparison(None, world.words, ["all"], SEEDS))
    limit_s = LONGER * horizon_s(every[0], TURNS)
    every = [shortened(experiment, limit_s) for experiment in every]
    name = f"full-{world.number}"
    return find_study(runs, name, every) or create_study(runs, name, every)


def carry_out(task: tuple[str, str, list[str]]) -> tuple[str, str, float]:
    """Do one piece of work in a process of the pool; return its name and its CPU seconds."""
    kind, name, words = task
    began = time.process_time()
    if kind == "run":
        plan, folder = (Path(word) for word in words)
        if folder.exists():
            resume_run(folder, lambda _: None, lambda _: None)
        else:
            experiment = read_experiment(plan)
            run_experiment(experiment, folder.parent, folder.name, lambda _: None, lambda _: None)
    else:
        from typer.testing import CliRunner

        from dystop.cli import app

        result = CliRunner().invoke(app, ["advise", *words])
        if result.exit_code:
            raise RuntimeError(f"{name}: {result.output}")
    return kind, name, time.process_time() - began


def advice_of(world: World, goal: str, runs: Path) -> Path:
    return runs / f"advise-{world.number}-{goal}"


def tasks_of(world: World, runs: Path, goals: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    study = study_of(world, runs)
    found = []
    for goal in goals:
        folder = advice_of(world, goal, runs)
        words = [*world.words, "--goal", goal, "--out", str(runs), "--name", folder.name]
        if not (folder / "advice.csv").is_file():
            found.append(("advise", f"{world.number}", [*words, "--jobs", "1", "--quiet"]))
    return found + [
        ("run", f"{world.number}", [str(study.plan(e).absolute()), str(study.folder(e).absolute())])
        for e in study.todo()
    ]


def advised(world: World, goal: str, runs: Path) -> str:
    """Return the mechanism that the advice names: the first of the last stage."""
    with (advice_of(world, goal, runs) / "advice.csv").open() as file:
        rows = list(csv.DictReader(file))
    return next(row["mechanism"] for row in rows if row["stage"] == rows[-1]["stage"])


def verdicts(
    world: World, runs: Path, goals: Sequence[str], cpu_s: dict[tuple[str, str], float]
) -> list[list[object]]:
    """Compare the advice with the full study."""
    study = study_of(world, runs)
    groups = group_runs([open_run(study.folder(e)) for e in study.experiments])
    target = common_target(best_of(groups), (len(groups) + 1) // 2)
    found: list[list[object]] = []
    for goal, contest in all_contests(contenders_of(groups, target), target).items():
        if goal not in goals:
            continue
        winner, name = contest.winner, advised(world, goal, runs)
        assert winner is not None
        rank = [c.name for c in contest.ranked].index(name)
        lead = lead_of(winner, contest.ranked[rank], goal)
        said = "winner" if rank == 0 else "within spread" if lead.tie else "no"
        spent = [round(cpu_s.get((kind, str(world.number)), 0.0), 1) for kind in ("advise", "run")]
        found.append([
            world.number, world.timing, *(world.place[axis] for axis in AXES), target,
            goal, winner.name, " ".join(c.name for c in contest.tied), name, said, rank + 1,
            "" if lead.factor is None else f"{lead.factor:.3f}", spent[0] / len(goals), spent[1],
        ])  # fmt: skip
    return found


def curves(runs: Path) -> dict[str, list[list[float]]]:
    """Return clock, bytes, epochs and accuracy at every evaluation of every finished run."""
    found = {}
    for info in sorted(runs.glob("**/run.json")):
        folder = info.parent
        if finished(folder):
            rows = evaluated_rounds(open_run(folder).records)
            found[str(folder.relative_to(runs))] = [
                [round(r.clock_s, 4), r.wire_bytes_total, round(r.epochs_total, 3),
                 round(r.accuracy or 0.0, 4)] for r in rows
            ]  # fmt: skip
    return found


def write(out: Path, rows: Sequence[Sequence[object]]) -> None:
    with (out / "verdicts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(sorted(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--runs", type=Path, default=Path("runs/advise"), help="folder of the runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e6, help="seconds, then it stops")
    parser.add_argument("--worlds", default="", help="numbers such as 0,3; default: all ten")
    parser.add_argument("--goals", default="time", help="time,traffic,compute, or some of them")
    parser.add_argument("--seed", type=int, default=2026, help="that the worlds are drawn from")
    args = parser.parse_args()
    goals = args.goals.split(",")
    ends = time.monotonic() + args.limit
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [int(k) for k in args.worlds.split(",") if k] or range(WORLDS)
    every = {k: world for k, world in enumerate(worlds(args.seed, WORLDS)) if k in chosen}
    tasks = [task for world in every.values() for task in tasks_of(world, args.runs, goals)]
    tasks.sort(key=lambda task: (int(task[1]), task[0] != "advise"))
    left = {str(k): sum(task[1] == str(k) for task in tasks) for k in every}
    cpu_s: dict[tuple[str, str], float] = {}
    rows: list[list[object]] = []
    for k, world in every.items():
        rows += [] if left[str(k)] else verdicts(world, args.runs, goals, cpu_s)
    write(args.out, rows)
    pool = get_context("spawn").Pool(args.processes)
    results = pool.imap_unordered(carry_out, tasks)
    try:
        for done in range(len(tasks)):
            kind, name, spent = results.next(max(0.1, ends - time.monotonic()))
            cpu_s[kind, name] = cpu_s.get((kind, name), 0.0) + spent
            left[name] -= 1
            print(f"{done + 1}/{len(tasks)} {kind} of world {name}: {spent:.1f} s", flush=True)
            if not left[name]:
                rows += verdicts(every[int(name)], args.runs, goals, cpu_s)
                write(args.out, rows)
    except TimeoutError:
        print("the time is over; the same command resumes", flush=True)
    finally:
        pool.terminate()
        (args.out / "curves.json").write_text(json.dumps(curves(args.runs)))
    for goal in goals:
        said = [row[COLUMNS.index("verdict")] for row in rows if goal in row]
        right = sum(each != "no" for each in said)
        print(f"{goal}: the winner or a tie with it in {right} of {len(said)} worlds", flush=True)


if __name__ == "__main__":
    main()
