"""Reports of a task with another score than accuracy name that score."""

from dataclasses import replace

import pytest

from dystop.report.data.comparison.study_results import study_results
from dystop.report.data.notices import no_better_than_guessing
from dystop.report.data.scores import score_of
from dystop.report.data.summary_table import summary_rows
from dystop.report.pages.runs import write_report
from dystop.report.pages.study import draw_ranking
from support.fake_runs import changed, fake_run


def as_regression(run):
    records = [changed(r, score_name="r2" if r.accuracy is not None else None) for r in run.records]
    fleet = {**run.fleet, "task": "regression", "score": "r2"}
    return replace(run, records=records, fleet=fleet)


@pytest.fixture
def runs():
    return [as_regression(fake_run(name, mechanism=name)) for name in ("dystop", "matcha")]


def test_tables_of_a_study_name_the_score(runs):
    results = study_results(runs)
    (ranking,) = results.rankings
    titles = [column.title for column in (*ranking.results, *ranking.costs)]
    assert "final r2" in titles
    assert not any("accuracy" in title for title in titles)
    assert "target r2" in results.target.reason
    plots = draw_ranking(results, ranking)
    assert any(plot.title.startswith("Test r2 over") for plot in plots)
    labels = {axes.get_ylabel() for plot in plots if plot.figure for axes in plot.figure.axes}
    assert "test r2" in labels


def test_the_report_of_one_run_names_the_score(runs, tmp_path):
    write_report(runs[:1], tmp_path, formats=())
    page = (tmp_path / "report.html").read_text()
    assert "final r2" in page
    assert "final accuracy" not in page
    assert "final r2" in summary_rows(runs[:1])[0]


def test_scores_of_different_tasks_are_called_scores(runs):
    assert score_of(runs).name == "r2"
    assert score_of([runs[0], fake_run("plain")]).name == "score"
    assert score_of([fake_run("plain")]).name == "accuracy"


def test_a_regression_does_not_guess_among_classes(runs):
    low = [changed(r, accuracy=0.0, accuracy_global=0.0) for r in runs[0].records]
    assert not no_better_than_guessing([replace(runs[0], records=low)])
