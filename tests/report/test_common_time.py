"""What a comparison sets side by side: what was known at one time, under telling names."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.folders.run_folder import open_run
from dystop.report import write_study
from dystop.report.data.comparison.ranking import rank_groups
from dystop.report.data.groups import common_time_s, evaluations, group_runs
from dystop.report.data.notices import study_notices
from dystop.report.data.scores import evaluated_rounds
from dystop.report.pages.study import draw_groups
from support.fake_runs import fake_run, plain_record


def planned(mechanism, scores, every_s=2.0, seed=0):
    """A run tested every `every_s` seconds, with these accuracies by clock."""
    rows = [
        plain_record(t, clock_s, accuracy=score, accuracy_global=score)
        for t, (clock_s, score) in enumerate(scores.items(), 1)
    ]
    run = fake_run(f"{mechanism}-s{seed}", mechanism, rounds=0, seed=seed)
    config = {**run.config, "evaluate": {"every_s": every_s, "every_rounds": 5}}
    return replace(run, records=rows, config=config)


def fair(runs, target=0.99):
    """The fair column, its cells by mechanism."""
    (ranking,) = rank_groups(group_runs(runs), target)
    column = next(c for c in ranking.results if c.title.startswith("accuracy at"))
    return column, {g.mechanism.name: c for g, c in zip(ranking.groups, column.cells, strict=True)}


def test_the_run_that_ends_first_is_not_favoured():
    first = planned("matcha", {2.1: 0.5, 4.7: 0.6, 6.28: 0.64})
    others = [planned("dystop", {2.0: 0.5, 4.8: 0.6, 6.4: 0.7}),
              planned("fedavg", {3.3: 0.5, 4.9: 0.66, 6.6: 0.65, 8.2: 0.9})]  # fmt: skip
    column, cells = fair([first, *others])
    assert column.title == "accuracy at 6.60 s"  # when all have had the test planned for 6 s
    assert "at or before" in column.meaning
    assert {name: cell.text for name, cell in cells.items()} == {
        "matcha": "64.0 %", "dystop": "70.0 %", "fedavg": "65.0 %",
    }  # fmt: skip
    assert [name for name, cell in cells.items() if cell.best] == ["dystop"]
    even = [first, planned("dystop", {2.0: 0.5, 4.8: 0.9, 6.4: 0.64, 8.0: 0.7})]
    assert all(cell.best for cell in fair(even)[1].values())  # a tie has two stars


def test_the_planned_test_is_one_that_every_seed_has():
    runs = [
        planned("a", {2.0: 0.2, 4.0: 0.4}),
        planned("a", {2.5: 0.3}, seed=1),
        planned("b", {2.9: 0.5, 4.0: 0.1}),
        planned("b", {2.0: 0.6, 5.0: 0.1}, seed=1),
    ]
    column, cells = fair(runs)
    assert column.title == "accuracy at 2.90 s"
    assert {name: cell.value for name, cell in cells.items()} == {
        "a": pytest.approx(0.25), "b": pytest.approx(0.55),
    }  # fmt: skip


def test_rounds_longer_than_the_interval_do_not_gain_time():
    slow, quick = planned("slow", {50.0: 0.5, 100.0: 0.9}), planned("quick", {2.0: 0.1, 60.1: 0.6})
    column, cells = fair([slow, quick])
    assert column.title == "accuracy at 60.1 s"
    assert (cells["slow"].text, cells["quick"].text) == ("50.0 %", "60.0 %")
    assert [evaluations(slow).score_at(s) for s in (1.0, 50.0, 99.9, 100.0)] == [
        None, 0.5, 0.5, 0.9
    ]  # fmt: skip


def test_no_column_repeats_the_final_accuracy():
    """Runs that stop at one time have had the same tests: there is nothing else to compare."""
    runs = [planned("a", {2.1: 0.2, 4.3: 0.4}), planned("b", {2.0: 0.3, 4.1: 0.5})]
    (ranking,) = rank_groups(group_runs(runs), 0.99)
    titles = [column.title for column in ranking.results]
    assert "final accuracy" in titles
    assert not [title for title in titles if title.startswith("accuracy at")]


def test_multiples_of_a_decimal_fraction_are_met():
    for due in (k * 0.2 for k in (1, 3, 5, 43, 86)):  # 3 * 0.2 > 0.6, and 43 * 0.2 / 0.2 < 43
        runs = [
            planned(name, {0.1: 0.1, due: 0.5} | more, 0.2)
            for name, more in (("a", {}), ("b", {due + 0.2: 0.6}))
        ]
        column, cells = fair(runs)
        assert column.title in (f"accuracy at {due:.{n}f} s" for n in (0, 1, 2, 3))
        assert [cells[name].value for name in "ab"] == [0.5, 0.5]


def test_no_column_where_no_planned_test_is_shared():
    early, late = planned("a", {2.1: 0.5, 3.9: 0.6}), planned("b", {4.5: 0.5})
    assert common_time_s(group_runs([early, late])) is None
    assert common_time_s(group_runs([planned("a", {1.5: 0.5}), planned("b", {2.1: 0.5})])) is None
    assert common_time_s(group_runs([early, planned("b", {})])) is None
    far = group_runs([early, planned("b", {3.0: 0.1, 9.0: 0.5})])
    assert common_time_s(far) == 3.9
    assert "common time" in " ".join(study_notices(far))


def test_without_a_common_plan_the_last_test_by_then_counts():
    for plans in ((0.0, 0.0), (2.0, 3.0), (2.0, 0.0)):
        runs = [
            planned(name, {2.0: 0.2, end: 0.5}, every_s)
            for name, every_s, end in zip("ab", plans, (6.0, 6.5), strict=True)
        ]
        column, cells = fair(runs)
        assert (column.title, cells["b"].text) == ("accuracy at 6 s", "20.0 %")


def test_the_engine_tests_when_the_rule_says_so(tmp_path):
    words = [
        "--mechanisms", "dystop,fedavg", "--seeds", "1", "--out", str(tmp_path), "--name", "x",
        "data.name=synthetic", "data.options.train=200", "data.options.test=60",
        "model.name=softmax", "fleet.workers=6", "stop.rounds=9999", "stop.seconds=6",
        "evaluate.every_s=2",
    ]  # fmt: skip
    shown = CliRunner().invoke(app, ["compare", *words])
    assert shown.exit_code == 0, shown.output
    runs = [open_run(tmp_path / "x" / f"{name}-s0") for name in ("dystop", "fedavg")]
    for run in runs:
        due = [next(r.round for r in run.records if r.clock_s >= at) for at in (2.0, 4.0, 6.0)]
        assert [r.round for r in evaluated_rounds(run.records)] == list(dict.fromkeys(due))
    assert common_time_s(group_runs(runs)) == max(run.records[-1].clock_s for run in runs)


def arm(seed=0, timing="paper", **blocks):
    """A run of one mechanism whose configuration has these blocks on top."""
    run = planned("dystop", {2.0: 0.4, 4.0: 0.6}, seed=seed)
    config = {**run.config, "engine": {"timing": timing}, "name": f"x{blocks}{seed}"}
    for block, keys in blocks.items():
        config[block] = {**config.get(block, {}), **keys}
    return replace(run, config=config, info={**run.info, "timing": timing})


def names(*runs):
    """The labels of the rows."""
    return [group.label for group in group_runs(runs)]


def test_rows_of_one_mechanism_say_which_setting_they_have():
    values = [arm(mechanism={"V": v}, seed=s) for v in (1.0, 10.0, 12.5) for s in (0, 1)]
    assert names(*values) == [f"dystop (paper), V = {v}" for v in ("1", "10", "12.5")]
    assert names(arm(data={"phi": 0.4}), arm(data={"phi": 1.0})) == [
        "dystop (paper), phi = 0.4",
        "dystop (paper), phi = 1",
    ]
    both = arm(mechanism={"V": 1.0}), arm(data={"phi": 0.7})
    assert names(*both) == ["dystop (paper), V = 1, phi = 0.4", "dystop (paper), V = 10, phi = 0.7"]
    assert names(*both, planned("fedavg", {2.0: 0.1}))[2] == "fedavg (paper)"


def test_a_key_is_written_out_where_its_end_is_not_enough():
    assert names(arm(data={"name": "mnist"}), arm(data={"name": "fmnist"})) == [
        "dystop (paper), data.name = mnist",
        "dystop (paper), data.name = fmnist",
    ]


def test_numbers_are_left_for_what_settings_cannot_tell():
    numbered = ["dystop (paper) #1", "dystop (paper) #2"]
    three = {"a": 1, "b": 2, "c": 3}
    assert names(arm(), arm(other=three)) != numbered
    assert names(arm(), arm(other={**three, "d": 4})) == numbered
    assert names(arm(mechanism={"V": 10}), arm(mechanism={"V": 10.0})) == numbered  # read alike
    assert names(arm(), arm(other={})) == numbered  # an empty block holds no key


def test_labels_hold_under_both_laws_and_in_figures_and_page(tmp_path):
    runs = [arm(timing=law, mechanism={"V": v}) for law in ("paper", "overlap") for v in (1.0, 5.0)]
    every = group_runs(runs)
    assert [g.label for g in every] == ["dystop (paper), V = 1", "dystop (paper), V = 5"] * 2
    assert every[0].color_index == every[2].color_index != every[1].color_index
    lines = next(p for p in draw_groups(every[:2], 0.5) if p.key == "accuracy-time")
    (legend,) = lines.figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:2] == ["dystop (paper), V = 1", "dystop (paper), V = 5"]
    arms = [arm(data={"phi": 0.4, "root": "here"}), arm(data={"phi": 1.0, "root": "here"})]
    page = write_study(arms, tmp_path, title="phi", formats=("png",)).files.html.read_text()
    assert "dystop (paper), phi = 0.4" in page
    assert "data.root" in page
    assert "data.phi" not in page  # not among the settings that all share
