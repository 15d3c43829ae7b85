"""The verdicts before and after the mends: files, script and page agree."""

import csv
import importlib.util
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/paper.md"
BEFORE = ROOT / "docs/results/paper/before"
VERDICTS = ("holds", "holds partly", "does not hold", "undecided")
PARTS = {
    "the four mechanisms: time, traffic, accuracy": "main-fmnist",
    "staleness on Fashion-MNIST": "planned-fmnist",
    "staleness on CIFAR-10's clock": "planned-cifar10",
    "accuracy at the bounds": "staleness-fmnist",
    "the number of neighbours s": "neighbours-fmnist",
    "V": "control-fmnist",
    "the phases": "phases-fmnist",
    "all 47": "",
}


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "judge_packed_runs.py"
    spec = importlib.util.spec_from_file_location("judge_packed_runs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def counts(rows, part="") -> str:
    found = Counter(row["verdict"] for row in rows if part in ("", row["part"]))
    return ", ".join(str(found[verdict]) for verdict in VERDICTS)


def test_the_script_gives_the_verdicts_in_the_folder(script, tmp_path, capsys):
    for name in ("runs.csv", "tests.csv.xz"):
        shutil.copy(BEFORE / name, tmp_path)
    script.main(tmp_path)
    assert (tmp_path / "verdicts.csv").read_text() == (BEFORE / "verdicts.csv").read_text()
    assert "47 claims" in capsys.readouterr().out
    (less,) = [row for row in rows_of(tmp_path / "verdicts.csv") if "than matcha" in row["claim"]]
    assert less["ours"].startswith("2.2% less (82.3 s")
    assert less["verdict"] == "does not hold"


def test_the_page_has_the_counts_of_its_files():
    after = rows_of(ROOT / "docs/results/paper/verdicts.csv")
    by_reading = [rows_of(BEFORE / "verdicts.csv")]
    by_reading += [[r for r in after if r["reading"] == name]
                   for name in ("literal", "physical", "nearest")]  # fmt: skip
    claims = [{(r["part"], re.sub(r" to \d+ %$", "", r["claim"])) for r in rows}
              for rows in by_reading]  # fmt: skip
    assert len(claims[0]) == 47
    assert all(found == claims[0] for found in claims)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for title, part in PARTS.items():
        cells = [title, *(counts(rows, part) for rows in by_reading)]
        assert f"| {' | '.join(cells)} |" in lines
