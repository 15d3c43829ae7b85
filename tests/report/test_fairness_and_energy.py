"""Fairness and energy in summaries, comparison tables and results.csv, where they are recorded."""

import csv
import io
from dataclasses import replace

import pytest

from dystop.report.data.comparison.ranking import rank_groups
from dystop.report.data.comparison.study_results import results_csv, study_results
from dystop.report.data.scores import Score
from dystop.report.data.summary import energy_until, summarise
from dystop.report.data.summary_table import metrics, summary_rows
from support.fake_runs import changed, fake_run, plain_record


def run_with(name, joules, accuracies, **more):
    """A run of four rounds that is tested after the second and the fourth."""
    tested = {2: 0.55, 4: sum(accuracies) / len(accuracies)}
    records = [
        plain_record(
            t, 10.0 * t, energy_j=joules, accuracy=tested.get(t),
            worker_accuracy=accuracies if t == 4 else None,
        )
        for t in (1, 2, 3, 4)
    ]  # fmt: skip
    return replace(fake_run(name, **more), records=records)


def plain(run):
    """The same run without energy and without results of single workers."""
    records = [changed(r, energy_j=None, worker_accuracy=None) for r in run.records]
    return replace(run, records=records)


FAIR = run_with("fair", 1000.0, [0.7, 0.7, 0.7])
UNFAIR = run_with("unfair", 400.0, [0.9, 0.9, 0.2], mechanism="d-psgd")


def test_the_summary_of_a_run():
    (fair,), (unfair,) = summarise([FAIR], 0.5), summarise([UNFAIR], 0.5)
    assert (fair.energy_j, fair.target_energy_j) == (4000.0, 2000.0)
    assert fair.accuracy_worst == pytest.approx(0.7)
    assert fair.accuracy_jain == pytest.approx(1.0)
    assert unfair.accuracy_worst == 0.2
    assert unfair.accuracy_jain == pytest.approx(2.0**2 / (3 * (2 * 0.9**2 + 0.04)))
    shown = summary_rows([FAIR], 0.5)[0]
    assert shown["worst tenth of workers"] == "70.0 %"
    assert shown["fairness, Jain's index"] == "1.000"
    assert (shown["energy to 50 %"], shown["energy"]) == ("2 kJ", "4 kJ")


def test_without_records_there_are_no_rows():
    titles = {m.title for m in metrics(summarise([plain(FAIR)], 0.5), Score())}
    assert not any("energy" in title or "worst" in title for title in titles)
    columns = rank_groups(study_results([plain(FAIR), plain(UNFAIR)]).groups, 0.5)[0]
    assert not any("energy" in c.title or "worst" in c.title for c in columns.results)


def test_energy_is_unknown_where_a_round_has_none():
    records = [*FAIR.records[:2], changed(FAIR.records[2], energy_j=None), FAIR.records[3]]
    assert energy_until(records, records[1]) == 2000.0
    assert energy_until(records, records[3]) is None


def test_the_tables_of_a_comparison():
    ranking = rank_groups(study_results([FAIR, UNFAIR]).groups, 0.5)[0]
    shown = {c.title: [(cell.text, cell.best) for cell in c.cells]
             for c in [*ranking.results, *ranking.costs]}  # fmt: skip
    order = [group.mechanism.name for group in ranking.groups]
    assert order == ["dystop", "d-psgd"]
    assert shown["energy to 50 %"] == [("2 kJ", False), ("800 J", True)]
    assert shown["worst tenth"] == [("70.0 %", True), ("20.0 %", False)]
    assert [best for _, best in shown["fairness"]] == [True, False]
    assert shown["energy"] == [("4 kJ", False), ("1.60 kJ", False)]


def test_a_target_that_is_not_reached_has_no_energy():
    ranking = rank_groups(study_results([FAIR, UNFAIR]).groups, 0.99)[0]
    energy = next(c for c in ranking.results if c.title == "energy to 99 %")
    assert [cell.text for cell in energy.cells] == ["not reached", "not reached"]


def test_results_csv_has_the_columns():
    rows = list(csv.DictReader(io.StringIO(results_csv(study_results([FAIR, plain(UNFAIR)], 0.5)))))
    by_run = {row["run"]: row for row in rows}
    assert float(by_run["fair"]["energy_j"]) == 4000.0
    assert float(by_run["fair"]["target_energy_j"]) == 2000.0
    assert float(by_run["fair"]["accuracy_worst"]) == pytest.approx(0.7)
    assert by_run["unfair"]["energy_j"] == by_run["unfair"]["accuracy_jain"] == ""
