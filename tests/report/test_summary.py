"""The summary: numbers reckoned by hand, and words that say what they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from dystop.folders.run_folder import RunData
from dystop.report import default_target, draw_runs, summarise, summary_rows
from dystop.report.data.names import law_text, mechanism_of, rerun_command, run_labels
from dystop.report.data.notices import different_experiments, notices
from dystop.report.data.scores import first_reaching
from dystop.report.data.series import MAX_POINTS, series, staleness_shares
from dystop.report.data.summary_table import summary_table
from dystop.report.pages.runs import render_runs
from support.fake_runs import changed, fake_run, plain_record


def hand_run(*scores: float | None) -> RunData:
    """Rounds of ten seconds with these accuracies."""
    rows = [
        plain_record(t, 10.0 * t, accuracy=score, accuracy_std=None if score is None else 0.05)
        for t, score in enumerate(scores, 1)
    ]
    return replace(fake_run(rounds=0), records=rows)


def test_summary_by_hand():
    run = hand_run(0.4, None, 0.8, 0.7)
    last = changed(run.records[-1], accuracy_global=0.75, staleness_max=5, staleness_mean=2.0)
    (got,) = summarise([replace(run, records=[*run.records[:-1], last])], target=0.6)
    assert (got.accuracy, got.accuracy_std, got.accuracy_global) == (0.7, 0.05, 0.75)
    assert (got.accuracy_best, got.rounds, got.clock_s) == (0.8, 4, 40.0)
    assert (got.wire_bytes, got.endpoint_bytes, got.epochs) == (1200, 2400, 2.0)
    assert (got.staleness_mean, got.staleness_max, got.active_mean) == (1.25, 5, 2.0)
    assert got.idle_share == pytest.approx(4 * 8.0 / (4 * 4 * 10.0))
    assert (got.target_s, got.target_bytes) == (30.0, 900)


def test_target_is_the_first_evaluation_at_or_above_never_between():
    run = hand_run(0.59, None, 0.6, 0.9)
    reached = first_reaching(run.records, 0.6)
    assert reached is not None
    assert reached.round == 3
    assert first_reaching(run.records, 0.91) is None


def test_missed_target_is_said_plainly():
    (row,) = summary_rows([hand_run(0.3, 0.4)], target=0.8)
    assert row["time to 80 %"] == row["data to 80 %"] == "not reached"


@pytest.mark.parametrize(
    ("best", "target"), [(0.49, None), (0.5, 0.5), (0.74, 0.7), (0.76, 0.75), (0.99, 0.9)]
)
def test_default_target_is_the_largest_that_any_run_reached(best, target):
    assert default_target([hand_run(0.1), hand_run(best, 0.2)]) == target


def test_last_evaluation_counts_even_when_later_rounds_were_not_tested():
    (got,) = summarise([hand_run(0.5, None)])
    assert got.accuracy == 0.5


@pytest.mark.parametrize("scores", [(), (None,), (None, None)])
def test_nothing_evaluated_is_words_not_numbers(scores):
    (row,) = summary_rows([hand_run(*scores)])
    assert row["final accuracy"] == "not evaluated"
    assert row["time to target"] == "no target"
    assert "nan" not in " ".join(row.values()).lower()


def test_values_that_are_not_finite_are_treated_as_missing():
    (row,) = summary_rows([hand_run(float("nan"))])
    assert row["final accuracy"] == "not evaluated"


def test_time_that_was_measured_is_not_called_simulated():
    run = hand_run(0.8125)
    real = replace(run, info=run.info | {"kind": "testbed"})
    (row,) = summary_rows([real])
    assert row["measured time"] == "10 s"
    assert "simulated time" not in row
    assert [row["time"] for row in summary_rows([run, real])] == ["10 s", "10 s"]
    assert law_text(real).startswith("measured")
    assert law_text(run).startswith("paper")
    for runs, name in (([run], "simulated time"), ([real], "measured time"), ([run, real], "time")):
        entry = next(plot for plot in draw_runs(runs) if plot.key == "accuracy-time")
        (axes,) = entry.figure.axes
        assert axes.get_xlabel() == f"{name} (s)"


def test_own_work_needs_no_warning():
    mine = fake_run("mine", "my-idea", "own work")
    assert not mechanism_of(mine).inexact
    assert run_labels([mine]) == run_labels([fake_run("mine", "my-idea", "paper")])
    assert mechanism_of(fake_run("x", "rebuilt", "reconstruction")).inexact


def test_rows_have_units_and_sensible_digits():
    (row,) = summary_rows([hand_run(0.8125)], target=0.8)
    assert row["final accuracy"] == "81.2 ± 5.0 %"
    assert row["simulated time"] == "10 s"
    assert row["data, wire"] == "300 B"
    assert row["staleness, mean / max"] == "1 / 2"
    assert row["idle share"] == "20.0 %"


def test_reconstruction_is_labelled_wherever_the_mechanism_is_named():
    run = fake_run("asydfl-s1", "AsyDFL", "reconstruction", rounds=2)
    assert run_labels([run]) == ["asydfl-s1 (reconstruction)"]
    assert mechanism_of(run).title == "AsyDFL (reconstruction)"
    assert any("reconstruction" in text for text in notices([run]))


def test_labels_name_the_mechanism_and_stay_distinct():
    run = fake_run("trial", rounds=1)
    assert run_labels([run, run]) == ["trial · dystop #1", "trial · dystop #2"]
    long = fake_run("x" * 200, "MATCHA", "reconstruction", rounds=1)
    (label,) = run_labels([long])
    assert len(label) < 70
    assert label.endswith("· MATCHA (reconstruction)")


def test_a_run_without_a_description_still_has_a_name():
    run = replace(fake_run(rounds=1), info={}, config={"mechanism": {"name": "own"}})
    assert mechanism_of(run).title == "own"
    assert mechanism_of(replace(run, config={})).name == "unknown mechanism"


def settings(name, mechanism="dystop", /, **sections):
    """A run with these keys on top of its configuration."""
    run = fake_run(name, mechanism, rounds=30, top=0.9)
    return replace(run, config={**run.config, **sections})


def page_of(*runs):
    return render_runs(runs, summarise(runs, 0.5), [])


def test_runs_of_different_experiments_have_no_best():
    small = settings("a", model={"name": "softmax"}, fleet={"workers": 6}, world={"range_m": 40.0})
    large = settings("b", model={"name": "cnn"}, fleet={"workers": 9}, world={"range_m": 70.0})
    note = notices([small, large])[0]
    for fact in ("model.name = softmax, cnn", "fleet.workers = 6, 9", "world.range_m = 40, 70"):
        assert fact in note
    page = page_of(small, large)
    assert 'class="best"' not in page
    assert "star marks" not in page
    assert page.index("fleet.workers = 6, 9") < page.index("<h2>")


def test_a_note_on_experiments_stays_short():
    many = [settings(f"r{k}", other={f"key{j}": 10**k for j in range(30)}) for k in range(9)]
    note = notices(many)[0]
    assert len(note) < 400
    assert "25 more" in note
    assert "9 values" in note


@pytest.mark.parametrize(
    ("sections", "differ"),
    [
        ({"mechanism": {"name": "dystop", "V": 99.0}}, False),
        ({"seed": 7, "name": "other", "output": {"models": "all"}}, False),
        ({"stop": {"rounds": 99}, "evaluate": {"every_rounds": 2}}, False),
        ({"training": {"device": "cuda"}, "data": {"root": "elsewhere"}}, False),
        ({"world": {"range_m": 40.0}}, False),  # the default, which an older run does not hold
        ({"training": {"learning_rate": 0.5}}, True),
        ({"testbed": {"links": "free"}}, True),
        ({"evaluate": {"samples": 10}}, True),
    ],
)
def test_what_makes_another_experiment(sections, differ):
    pair = settings("a", data={}, output={}, training={}), settings("b", "matcha", **sections)
    pair = tuple(replace(run, fleet={}) for run in pair)
    assert bool(different_experiments(pair)) == differ
    assert ("star marks" in page_of(*pair)) != differ


def test_measured_and_simulated_seconds_have_no_best():
    simulated, real = settings("a"), settings("b", "matcha")
    real = replace(real, info={**real.info, "kind": "testbed"})
    assert different_experiments([simulated, real])
    assert not different_experiments([real, real])
    assert 'class="best"' not in page_of(simulated, real)


def test_command_survives_a_folder_with_spaces():
    run = replace(fake_run(rounds=1), path=Path("my runs/a"))
    assert rerun_command(run) == "dystop run 'my runs/a/config.toml'"


def test_notices_warn_of_unfair_comparisons():
    a = fake_run("a", rounds=3)
    b = replace(a, name="b", path=Path("b"), info={**a.info, "timing": "overlap"})
    c = replace(a, name="c", path=Path("c"), fleet={"label_counts": [[1]]})
    d = replace(a, name="d", path=Path("d"), info={**a.info, "status": "interrupted"})
    text = " ".join(notices([a, b, c, d]))
    assert "timing laws" in text
    assert "one data split" in text
    assert "d · dystop was interrupted" in text
    assert notices([fake_run(rounds=10)]) == []


def test_notices_count_missing_scores_and_models():
    run = fake_run("a", workers=10, rounds=20, every=5)
    due = {5: {"tested": 10}, 10: {"tested": 2}, 15: {"accuracy": None, "no_score": "skipped"}}
    records = [changed(r, **due.get(r.round, {})) for r in run.records]
    text = " ".join(notices([replace(run, records=records)]))
    assert "1 of 4 evaluations that were due have no score (1 skipped)" in text
    assert "1 of 2 scores rest on fewer models" in text
    assert "2 of 10" in text


def test_staleness_shares_add_histograms_of_any_length():
    rows = [
        plain_record(1, 1.0, staleness_histogram=[4]),
        plain_record(2, 2.0, staleness_histogram=[1, 2, 1, 0]),
    ]
    assert staleness_shares(rows).tolist() == [0.625, 0.25, 0.125]
    assert len(staleness_shares([])) == 0


def test_long_histories_are_grouped_and_keep_their_extremes():
    rows = [plain_record(t, float(t), loss=float(t % 10)) for t in range(1, 5 * MAX_POINTS + 1)]
    line = series(rows, lambda r: r.clock_s, lambda r: r.loss)
    assert (len(line), line.group) == (MAX_POINTS, 5)
    assert (line.low.min(), line.high.max()) == (0.0, 9.0)
    assert line.x[0] == 5.0  # a group is drawn where it ends
    assert line.mean[0] == 3.0


@pytest.mark.parametrize(("loss", "is_named"), [(2.3, False), (7e28, True)])
def test_a_loss_beyond_all_reason_is_called_divergence(loss, is_named):
    run = hand_run(0.1)
    run = replace(run, records=[changed(run.records[-1], loss=loss)])
    named = [sentence for sentence in notices([run]) if "diverged" in sentence]
    assert bool(named) == is_named
    assert all(f"{loss:.3g}" in sentence for sentence in named)


@pytest.mark.parametrize(("server", "is_named"), [("none", True), ("base station", False)])
def test_a_network_in_pieces_is_named_with_their_sizes(server, is_named):
    run, physics = hand_run(0.1), {"connected": "no, 2 pieces of 3, 1 workers", "server": server}
    named = notices([replace(run, fleet={**run.fleet, "physics": physics})])
    assert any("not connected" in text and "3, 1 workers" in text for text in named) == is_named


def test_a_longer_run_has_no_star_for_its_later_end():
    short, long = hand_run(0.5, 0.6), hand_run(0.4, 0.5, 0.6, 0.8)
    for runs, starred in (([short, long], False), ([short, hand_run(0.5, 0.7)], True)):
        final = summary_table(summarise(runs, 0.5))[0]
        assert final.title == "final accuracy"
        assert any(cell.best for cell in final.cells) == starred


def test_a_machine_that_was_too_slow_for_its_devices_is_named():
    run = fake_run(rounds=10)
    late = [changed(record, trained_s=7.0, emulated_s=2.0) for record in run.records]
    (sentence,) = notices([replace(run, records=late)])
    assert "3.5 times as long" in sentence
    assert "testbed.time_scale" in sentence
    punctual = [changed(record, trained_s=2.1, emulated_s=2.0) for record in run.records]
    assert notices([replace(run, records=punctual)]) == []
