"""Judge the packed runs of a results page by today's rules: the verdicts before a change.

    python paper/scripts/judge_packed_runs.py paper/docs/results/paper/before

The folder holds `runs.csv` and `tests.csv.xz`, as `pack_results.py` writes them. Its runs
are judged by the claims and rules by which a search over readings is judged today, so that the
counts of both can be compared. `verdicts.csv` in the same folder gets one line per claim. Staleness
is the mean over a trained run here; a search plans 300 rounds for it. Trained runs of CIFAR-10 are
judged by their staleness only: the page compares no others.
"""

import csv
import io
import lzma
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from dystop.folders.run_folder import RunData
from dystop.record import Evaluated, RoundRecord
from dystop_paper.data.measures import ArmRuns
from dystop_paper.data.nearness import ReadingResult, judge_reading
from dystop_paper.reproduce.presets import CHOSEN
from dystop_paper.reproduce.reading_runs import PARTS, Part
from dystop_paper.reproduce.reading_space import reading_named

Row = dict[str, str]


def record(row: Row, staleness_mean: float) -> RoundRecord:
    """Return a record that holds what a packed line knows; everything else is zero."""
    wire = int(row["wire_bytes"])
    done = RoundRecord(
        round=int(row.get("round") or row["rounds"]), clock_s=float(row["clock_s"]), duration_s=0.0,
        alive=0, active=0, links=0, lost=0, wire_bytes=0, wire_bytes_total=wire,
        endpoint_bytes_total=2 * wire, samples_total=0, epochs_total=float(row["epochs"]),
        idle_s=0.0, staleness_mean=staleness_mean, staleness_max=0, staleness_histogram=(),
        queue_mean=0.0, loss=None,
    )  # fmt: skip
    scores = float(row["accuracy"]), 0.0, float(row["accuracy_global"])
    return done.having(Evaluated(*scores))


def packed_runs(folder: Path) -> Iterator[tuple[str, str, RunData]]:
    """Yield campaign, arm and run of every line of `runs.csv`; one record per test."""
    tests: dict[tuple[str, ...], list[Row]] = {}
    packed = lzma.decompress((folder / "tests.csv.xz").read_bytes()).decode()
    for row in csv.DictReader(io.StringIO(packed)):
        tests.setdefault((row["campaign"], row["arm"], row["seed"]), []).append(row)
    for row in csv.DictReader(io.StringIO((folder / "runs.csv").read_text(encoding="utf-8"))):
        key = (row["campaign"], row["arm"], row["seed"])
        stale = float(row["staleness_mean"])
        records = [record(test, stale) for test in tests.get(key, [row])]
        info = {"seed": int(row["seed"]), "status": row["status"]}
        yield *key[:2], RunData(folder, "-s".join(key[1:]), {}, info, {}, records)


def judged(folder: Path) -> ReadingResult:
    """Judge every claim of a search whose runs are in the folder."""
    by_arm: dict[tuple[str, str], tuple[RunData, ...]] = {}
    for campaign, arm, run in packed_runs(folder):
        by_arm[campaign, arm] = (*by_arm.get((campaign, arm), ()), run)
    compared = [part for part in PARTS if part.data != "cifar10" or part.is_planned]
    parts = {part.name: (part, arms_of(part, by_arm)) for part in compared}
    run_parts = {name: found for name, found in parts.items() if found[1]}
    return judge_reading(reading_named(CHOSEN), run_parts, ratios_only=False)


def arms_of(part: Part, by_arm: dict[tuple[str, str], tuple[RunData, ...]]) -> dict[str, ArmRuns]:
    """Return the runs of a part of the evaluation, by arm."""
    return {
        arm.key: ArmRuns(arm, by_arm[part.campaign.name, arm.key])
        for arm in part.arms
        if (part.campaign.name, arm.key) in by_arm
    }


def main(folder: Path) -> None:
    """Write `verdicts.csv` and print the counts, of all claims and of each part."""
    result = judged(folder)
    with (folder / "verdicts.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["part", "claim", "paper", "ours", "verdict"])
        table.writerows([n, r.claim, r.paper, r.ours, r.verdict] for n, r in result.verdicts)
    for part, rows in groupby(result.verdicts, key=lambda named: named[0]):
        click.echo(f"{part}: {dict(Counter(row.verdict for _, row in rows))}")
    click.echo(f"{len(result.verdicts)} claims: {dict(result.counts())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
