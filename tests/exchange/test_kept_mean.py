"""A run over compressed links keeps the mean of all models, or says that it does not."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.errors import ConfigError
from dystop.exchange.codecs import MEAN, describe_mean
from dystop.folders.run_folder import open_run
from dystop.mechanisms import MECHANISMS
from dystop.report.data.notices import notices
from dystop.runs.building import build
from support.codecs import codec_for

WORDS = [
    "fleet.workers=4", "data.name=synthetic", "model.name=softmax", "world.range_m=200",
    "stop.rounds=2", "evaluate.every_rounds=2",
]  # fmt: skip


@pytest.mark.parametrize("words", [["link.compression=sign", "aggregation.rule=median"],
                                   ["link.compression=none"]])  # fmt: skip
def test_a_step_that_nothing_uses_is_refused(words):
    with pytest.raises(ConfigError, match=r"link\.step"):
        build(read_experiment(None, ["mechanism.name=d-psgd", "link.step=0.1", *WORDS, *words]))
    with pytest.raises(ConfigError, match=r"link\.step"):
        build(read_experiment(None, ["link.compression=sign", "link.step=0.1", *WORDS]))


def test_a_promise_that_is_not_made_is_not_withdrawn():
    codec = codec_for("sign", 0.1, (10,), 0)
    assert not describe_mean(MECHANISMS["dystop"]().capabilities(), codec)
    assert describe_mean(MECHANISMS["d-psgd"]().capabilities(), codec)
    keeping = replace(codec, keeps_mean=True)
    assert not describe_mean(MECHANISMS["d-psgd"]().capabilities(), keeping)


@pytest.mark.parametrize(("rule", "speaks"), [("median", True), ("mean", False)])
def test_head_and_report_of_a_run_say_it(tmp_path, rule, speaks):
    words = [
        "mechanism.name=d-psgd", "link.compression=sign", f"aggregation.rule={rule}", *WORDS
    ]  # fmt: skip
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
