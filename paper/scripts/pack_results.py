"""Pack finished reproductions for the documentation: `paper/scripts/pack_results.py OUT DOCS`.

OUT is the folder of one scale, as in reproduce/paper. DOCS gets one line per test of every run
(`tests.csv.xz`), one line per run (`runs.csv`) and the figures of every verdict page as PNG.
"""

import csv
import io
import lzma
import shutil
import sys
from pathlib import Path

from dystop.folders.run_folder import RunData, open_run
from dystop.report.data.summary import evaluated_rounds
from dystop.studies.study import open_study

RUN = ("campaign", "arm", "seed", "status", "rounds", "clock_s", "accuracy", "accuracy_global",
       "wire_bytes", "epochs", "staleness_mean", "staleness_max", "wall_s")  # fmt: skip
TEST = ("campaign", "arm", "seed", "round", "clock_s", "accuracy", "accuracy_global", "loss",
        "wire_bytes", "epochs")  # fmt: skip


def run_line(campaign: str, arm: str, run: RunData) -> list[object]:
    """One line of `runs.csv`."""
    rows, last = run.records, evaluated_rounds(run.records)[-1]
    stale = sum(r.staleness_mean for r in rows) / len(rows)
    return [
        campaign, arm, run.info["seed"], run.info["status"], len(rows), round(last.clock_s, 2),
        round(last.accuracy or 0, 4), round(last.get("accuracy_global") or 0, 4),
        last.wire_bytes_total, round(last.epochs_total, 2), round(stale, 3),
        max(r.staleness_max for r in rows), run.info.get("wall_s"),
    ]  # fmt: skip


def test_lines(campaign: str, arm: str, run: RunData) -> list[list[object]]:
    """The lines of `tests.csv.xz` of one run."""
    return [
        [campaign, arm, run.info["seed"], r.round, round(r.clock_s, 3), round(r.accuracy or 0, 6),
         round(r.get("accuracy_global") or 0, 6), None if r.loss is None else round(r.loss, 4),
         r.wire_bytes_total, round(r.epochs_total, 2)]
        for r in evaluated_rounds(run.records)
    ]  # fmt: skip


def table(head: tuple[str, ...], lines: list[list[object]]) -> bytes:
    """Lines as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([head, *lines])
    return out.getvalue().encode()


def main(out: Path, docs: Path) -> None:
    """Pack everything under OUT."""
    runs: list[list[object]] = []
    tests: list[list[object]] = []
    for folder in sorted((out / "runs").iterdir()):
        study = open_study(folder)
        for experiment in study.experiments:
            if not study.folder(experiment).exists():
                continue  # a campaign may be run piece by piece
            run, arm = open_run(study.folder(experiment)), experiment.name.rpartition("-s")[0]
            runs.append(run_line(folder.name, arm, run))
            tests += test_lines(folder.name, arm, run)
        shutil.copy(study.plan(study.experiments[0]), docs / f"{folder.name}.toml")
    (docs / "runs.csv").write_bytes(table(RUN, runs))
    (docs / "tests.csv.xz").write_bytes(lzma.compress(table(TEST, tests), preset=9))
    for page in sorted(out.glob("*/figures")):
        for figure in sorted(page.glob("*.png")):
            shutil.copy(figure, docs / f"{page.parent.name}--{figure.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
