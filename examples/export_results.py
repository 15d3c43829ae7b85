"""Run a small experiment, export it as tables, and ask them three questions.

    python examples/export_results.py

The same tables as Parquet are read by pandas, polars, DuckDB and R:
`dystop export runs/trial --to parquet`.
"""

import csv
import subprocess
import sys
from collections import Counter


def dystop(*words):
    subprocess.run([sys.executable, "-m", "dystop", *words], check=True)


def rows(table):
    with open(f"tables/{table}.csv", newline="") as file:
        return list(csv.DictReader(file))


dystop(
    "run", "data.name=synthetic", "model.name=softmax", "fleet.workers=8", "world.range_m=100",
    "stop.rounds=12",
    "evaluate.every_rounds=4", "evaluate.per_worker=true", "energy.enabled=true",
    "--name", "trial", "--no-report",
)  # fmt: skip
dystop("export", "runs/trial", "--to", "csv", "--out", "tables")

last = rows("tests")[-1]
tested = [row for row in rows("workers") if row["round"] == last["round"] and row["accuracy"]]
worst = min(tested, key=lambda row: float(row["accuracy"]))
print(f"worker {worst['worker']} has the worst model: {float(worst['accuracy']):.1%}")

used = Counter((row["dst"], row["src"]) for row in rows("links"))
(dst, src), times = used.most_common(1)[0]
print(f"worker {dst} pulled from worker {src} most often, {times} times")

joules = float(last["energy_j_total"])
print(f"all workers together drew {joules:.0f} J in {float(last['clock_s']):.1f} s")
