"""Numbers in words: nouns that fit them, and the same digits wherever a number is shown."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import dystop.dashboard
from dystop.cli import app
from dystop.cli.progress import show_start
from dystop.control.stopping import Stop, stop_reason
from dystop.report.data.comparison import ranking
from dystop.report.data.groups import SeedSpread
from dystop.report.figures.single_runs import maps
from dystop.rng import stream
from dystop.units import number, percent, plural
from support.fake_runs import plain_record

STATIC = Path(dystop.dashboard.__file__).parent / "static"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node")


def in_javascript(expression: str, values: list[object]) -> list[str]:
    """What the page makes of some values."""
    common = (STATIC / "common.js").as_uri()
    script = f"import * as page from {json.dumps(common)};\n"
    script += f"console.log(JSON.stringify({json.dumps(values)}.map((v) => {expression})));"
    words = ["node", "--input-type=module", "-e", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=True)
    return json.loads(done.stdout)


@needs_node
def test_a_page_rounds_as_the_server_does():
    drawn = stream(0, "numbers").random(200)
    shares = [0.7925, 0.8125, 0.8135, 0.0, 1.0, 0.00125]
    shares += [k / 2000 for k in range(0, 2001, 7)] + drawn.tolist()
    assert in_javascript("page.percent(v)", shares) == [percent(v) for v in shares]
    values = [2.125, 2.375, -2.125, 100.5, 101.5, 1234.5, 0.0123, 12.25, 0.5, 7]
    values += [k / 16 for k in range(1, 400, 3)] + (50 * drawn).tolist()
    assert in_javascript("page.number(v)", values) == [number(v) for v in values]


@needs_node
def test_a_page_counts_as_the_server_does():
    counts = [0, 1, 2, 2000]
    assert in_javascript("page.plural(v, 'run')", counts) == [plural(n, "run") for n in counts]


def test_the_page_has_no_other_rounding():
    """`toFixed` alone would show another number than the tile above it."""
    for name in ("run.js", "index.js", "workers.js", "bars.js"):
        text = (STATIC / name).read_text()
        assert "toFixed(1)" not in text
        assert not [word for word in ("} runs", "} workers", "} rounds") if word in text]


def test_one_round_is_done(capsys):
    started = SimpleNamespace(
        physics={}, partition=[], memory="", folder=Path("x"), rounds=3, done=1
    )
    show_start(started)
    assert "  1 round is done, 2 to go\n" in capsys.readouterr().out
    assert stop_reason(Stop(rounds=1), plain_record(1, 1.0)) == "1 round is over"
    assert stop_reason(Stop(rounds=2), plain_record(2, 2.0)) == "2 rounds are over"


def test_one_seed_one_link():
    one, two = SeedSpread((0.5,), 1), SeedSpread((0.5,), 2)
    assert [ranking._seed_count(s) for s in (one, two)] == ["in 1 of 1 seed", "in 1 of 2 seeds"]
    scene = SimpleNamespace(round=14, active=[0], dst=[1], workers=1)
    assert maps._panel_title(None, scene, False) == "round 14: 1 active, 1 link"
    entry = SimpleNamespace(label="x")
    assert "x: 1 worker, 1 active, 1 link." in maps._alt([(entry, scene)])


def test_one_round_verified_and_one_worker_enrolled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["data.name=synthetic", "data.options.train=100", "data.options.test=50"]
    small += ["model.name=softmax", "fleet.workers=3", "stop.rounds=1"]
    call = CliRunner().invoke
    assert call(app, ["run", *small, "--name", "x", "--no-report"]).exit_code == 0
    assert "identical: 1 round, sha256" in call(app, ["verify", "runs/x"]).stdout
    images, labels = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels)
    described = call(app, ["data", "describe", "own.npz"])
    (tmp_path / "w00.json").write_text(described.stdout)
    done = call(app, ["data", "enrol", "w00.json"])
    assert (done.exit_code, done.stderr[:26]) == (0, "enrolment.json: 1 worker. ")
