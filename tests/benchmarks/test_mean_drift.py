"""`benchmarks/mean_drift.py`: compressed links move the mean of all models, and runs say so."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.exchange.codecs import MEAN, describe_mean
from dystop.experiments.folders.run_folder import open_run
from dystop.mechanisms import MECHANISMS
from dystop.report.data.notices import notices
from support.codecs import codec_for

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "mean_drift.py"
PAGE = (ROOT / "docs" / "how-to" / "compression.md").read_text()
WORDS = [
    "fleet.workers=4", "data.name=synthetic", "model.name=softmax", "world.range_m=200",
    "stop.rounds=2", "evaluate.every_rounds=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def mean_drift():
    spec = importlib.util.spec_from_file_location("mean_drift", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def says_of(compressor):
    """Return what the product says about the mean under D-PSGD and a compressor."""
    able = MECHANISMS["d-psgd"]().capabilities()
    codec = None if compressor == "none" else codec_for(compressor, 0.1, (10,), 0)
    return describe_mean(able, codec).get(MEAN, "")


@pytest.mark.parametrize(
    ("compressor", "known"),
    [("none", 0.0), ("int8", 0.02), ("sign", 0.58), ("topk", 0.80), ("randomk", 0.95)],
)
def test_the_drift_is_that_of_the_page(mean_drift, compressor, known):
    """The known figures were measured with other code, on other random models."""
    *_, last = mean_drift.drifts(f"link.compression={compressor}")
    assert last.mean == pytest.approx(known, abs=0.05 if known > 0.1 else 0.005)
    assert last.models < 0.01, "all agree"
    row = f"| `{compressor}` | {last.mean:.2f} | {last.models:.2f} |"
    assert row in PAGE
    assert bool(says_of(compressor)) == (last.mean > 1e-3)


@pytest.mark.parametrize("compressor", ["none", "int8", "sign", "topk", "randomk"])
def test_the_mean_stays_in_every_round_or_the_product_says_that_it_does_not(mean_drift, compressor):
    words = f"link.compression={compressor}", "stop.rounds=20"
    moved = [each.mean for each in mean_drift.drifts(*words)]
    assert len(moved) == 20
    if compressor == "none":
        assert max(moved) < 1e-6
        assert not says_of(compressor)
    else:
        assert moved[-1] > 1e-3
        assert compressor in says_of(compressor)


def test_a_promise_that_is_not_made_is_not_withdrawn():
    able = MECHANISMS["dystop"]().capabilities()
    assert not describe_mean(able, codec_for("sign", 0.1, (10,), 0))


@pytest.mark.parametrize(("compressor", "speaks"), [("sign", True), ("none", False)])
def test_head_and_report_of_a_run_say_it(tmp_path, compressor, speaks):
    words = ["mechanism.name=d-psgd", f"link.compression={compressor}", *WORDS]
    done = CliRunner().invoke(app, ["run", *words, "--out", str(tmp_path), "--name", "x"])
    assert done.exit_code == 0, done.output
    said = "link.compression=none" in done.stderr and MEAN in done.stderr
    assert said == speaks
    assert done.stderr.count("moved by mixing") == speaks, "said once"
    run = open_run(tmp_path / "x")
    assert (MEAN in run.fleet["physics"]) == speaks
    assert any("moved by mixing" in sentence for sentence in notices([run])) == speaks
    page = (tmp_path / "x" / "report" / "report.html").read_text()
    assert ("moved by mixing" in page) == speaks
    assert json.loads((tmp_path / "x" / "fleet.json").read_text())["physics"]
