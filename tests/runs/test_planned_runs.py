"""Runs that train nothing: their folders, reports and refusals."""

import json

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.views.run import run_view
from dystop.errors import CapacityError, ConfigError
from dystop.folders.run_folder import open_run
from dystop.report.data.notices import notices
from dystop.report.data.summary_table import summary_rows
from dystop.runs import run
from dystop.runs.api import simulate
from dystop.runs.building import build
from dystop.runs.interrupts import Interrupts
from dystop.testbed.setup.enrolment import check_testbed

WORDS = [
    "engine.train=false", "fleet.workers=9", "stop.rounds=8", "data.name=synthetic",
    "data.options.train=90", "model.name=softmax", "output.checkpoint_every=2",
]  # fmt: skip


def quiet(_):
    return None


def planned(*more):
    return read_experiment(None, [*WORDS, *more])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return run.run_experiment(planned(), out, "plan", quiet, quiet)


def test_a_run_folder_has_records_and_no_models(folder):
    data = open_run(folder)
    assert data.info["status"] == "finished"
    assert len(data.records) == 8
    assert all(r.accuracy is None and r.loss is None for r in data.records)
    assert not (folder / "models").exists()
    assert run.verify_run(folder, None, quiet).identical


def test_an_interrupted_plan_resumes_to_the_same_records(folder, tmp_path):
    def interrupt(record):
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run_experiment(planned(), tmp_path, "cut", quiet, interrupt)
    run.resume_run(tmp_path / "cut", quiet, quiet)
    records = (tmp_path / "cut" / "records.jsonl").read_bytes()
    assert records == (folder / "records.jsonl").read_bytes()


def test_report_and_terminal_say_planning_only(folder):
    data = open_run(folder)
    assert sum("planning only" in sentence for sentence in notices([data])) == 1
    assert not any("evaluated" in sentence for sentence in notices([data]))
    (row,) = summary_rows([data])
    assert "final accuracy" not in row
    assert "staleness, mean / max" in row
    page = CliRunner().invoke(app, ["report", str(folder)])
    assert page.exit_code == 0
    html = (folder / "report" / "report.html").read_text()
    assert "planning only" in html
    assert "Test accuracy" not in html


def test_a_comparison_of_plans_ranks_costs(tmp_path):
    words = ["compare", *WORDS, "--mechanisms", "dystop,d-psgd", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--name", "both"])
    assert done.exit_code == 0, done.output
    assert "planning only" in done.output.lower()
    assert "data, wire" in done.output
    assert "target" not in done.output.replace("no target accuracy", "")


def test_a_sweep_of_plans(tmp_path):
    words = ["sweep", *WORDS, "--over", "mechanism.V=1,50", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--name", "sweep"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "sweep" / "report" / "results.csv").is_file()


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("stop.accuracy=0.5", "stop.accuracy = 0.5"),
        ("stop.loss=0.1", "stop.loss = 0.1"),
        ("mechanism.name=l2pl", "distance and loss"),
        ("mechanism.name=fedhp", "'fedhp' decides by the distance"),
        ("world.compute.batch_s=measure", "batch_s = 'measure'"),
        ("aggregation.rule=clip", "aggregation.rule = 'clip'"),
        ("adversary.kind=flip", "adversary.kind = 'flip'"),
    ],
)
def test_what_needs_models_is_refused(word, fact):
    with pytest.raises(ConfigError, match=r"engine\.train") as refused:
        build(planned(word))
    assert fact in str(refused.value)


def test_the_testbed_always_trains():
    with pytest.raises(ConfigError, match=r"engine\.train = false"):
        check_testbed(planned())


def test_a_simulation_in_python_has_no_model():
    simulation = simulate(workers=5, dataset="synthetic", model="softmax", rounds=3,
                          overrides=["engine.train=false"])  # fmt: skip
    assert len(simulation.run().records) == 3
    with pytest.raises(ValueError, match="planning only"):
        simulation.model()


def test_the_memory_of_a_plan_counts_links_and_not_models(monkeypatch):
    text = build(planned()).memory
    assert "links in reach" in text
    assert "models" not in text
    monkeypatch.setattr("dystop.runs.building.simulation.available_bytes", lambda device: 1000)
    with pytest.raises(CapacityError, match=r"world\.range_m"):
        build(planned())


def test_the_dashboard_says_planning_only(folder):
    library = Library(folder.parent)
    place = library.find(folder.name)
    follower, _ = library.follower(place)
    follower.update()
    shown = json.dumps(run_view(place, library.files(place), follower, ""))
    assert "simulator, planning only" in shown
    assert "not evaluated yet" not in shown


def test_the_pause_after_a_checkpoint_grows_with_the_time_to_write_it(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now_s[0])
    schedule = run._SaveSchedule(Interrupts(), 0, saved_s=100.0)
    now_s[0] = 111.0
    assert schedule.is_due(1)
    now_s[0] = 114.0
    schedule.saved(111.0)  # it took three seconds
    now_s[0] = 143.0
    assert not schedule.is_due(2)
    now_s[0] = 144.0
    assert schedule.is_due(2)
