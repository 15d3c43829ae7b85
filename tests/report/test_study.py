"""The report of a comparison: spread over seeds reckoned by hand, and words that stay honest."""

import re
from dataclasses import replace

import pytest

from dystop.errors import ConfigError
from dystop.report import write_study
from dystop.report.data.comparison.headline import rank_changes
from dystop.report.data.comparison.ranking import cost_to_target, rank_groups
from dystop.report.data.comparison.study_results import choose_target, shared_target, study_results
from dystop.report.data.groups import (
    accuracy_at,
    common_time_s,
    group_runs,
    over_seeds,
    plus_minus,
)
from dystop.report.data.notices import notices, readings_note, study_notes, study_notices
from dystop.report.data.series import clock_s, mean_curve
from dystop.report.figures.comparison.bars import _staleness_bins
from dystop.report.pages.study import draw_groups
from dystop.studies.other_law import OtherLaw
from support.fake_runs import changed, fake_run, plain_record

KEYS = {
    "target-cost", "accuracy-time", "accuracy-communication", "accuracy-epochs", "loss-time",
    "communication-time", "time-shares", "staleness-distribution",
}  # fmt: skip


def hand(mechanism, seed, *scores, timing="paper", step_s=10.0, provenance="paper"):
    """A run with these accuracies, one every `step_s` seconds."""
    rows = [
        plain_record(t, step_s * t, accuracy=score, accuracy_std=0.1, accuracy_global=score)
        for t, score in enumerate(scores, 1)
    ]
    run = fake_run(f"{mechanism}-s{seed}", mechanism, provenance, rounds=0, seed=seed)
    config = {**run.config, "name": run.name, "engine": {"timing": timing}}
    return replace(run, records=rows, config=config, info={**run.info, "timing": timing})


@pytest.fixture(scope="module")
def study():
    """Two mechanisms under both laws; `slow` wins under overlap."""
    runs = []
    for seed in (0, 1):
        bump = 0.1 * seed
        runs += [
            hand("dystop", seed, 0.5, 0.7 + bump, 0.8),
            hand("slow", seed, 0.4, 0.5, 0.6 + bump, provenance="reconstruction"),
            hand("dystop", seed, 0.5, 0.6, 0.8, timing="overlap"),
            hand("slow", seed, 0.7, 0.8, 0.9, timing="overlap", provenance="reconstruction"),
        ]
    return runs


def test_runs_that_differ_only_in_seed_are_one_group(study):
    found = group_runs(study)
    assert [(g.label, g.law, g.seeds) for g in found] == [
        ("dystop (paper)", "paper", ["0", "1"]),
        ("slow (reconstruction)", "paper", ["0", "1"]),
        ("dystop (paper)", "overlap", ["0", "1"]),
        ("slow (reconstruction)", "overlap", ["0", "1"]),
    ]
    assert found[0].color_index == found[2].color_index != found[1].color_index


def test_the_same_mechanism_with_other_keys_is_another_group(study):
    other = replace(study[0], config={**study[0].config, "mechanism": {"name": "dystop", "V": 1}})
    assert [g.label for g in group_runs([study[0], other])] == [
        "dystop (paper), V = 10, staleness_bound = 2",
        "dystop (paper), V = 1, staleness_bound = unset",
    ]


def test_spread_over_seeds_by_hand():
    spread = over_seeds([1.0, None, 3.0, float("nan")])
    assert (spread.mean, spread.std, spread.complete) == (2.0, pytest.approx(2**0.5), False)
    assert plus_minus(spread, "s") == "2.00 ± 1.41 s"
    assert plus_minus(over_seeds([5.0]), "s") == "5 s"
    assert plus_minus(over_seeds([2e6, 2e6]), "MB", 1e6) == "2 MB"
    assert plus_minus(over_seeds([None])) == "–"


def test_time_to_target_counts_seeds_and_never_interpolates(study):
    dystop, slow, *_ = group_runs(study)
    assert cost_to_target(dystop, 0.75, clock_s).values == (30.0, 20.0)
    assert cost_to_target(slow, 0.65, clock_s).values == (30.0,)
    assert cost_to_target(slow, 0.65, clock_s).total == 2
    assert accuracy_at(dystop, 29.9).values == (0.7, pytest.approx(0.8))


def test_ranking_is_by_seeds_at_the_target_then_time_then_accuracy(study):
    paper, overlap = rank_groups(group_runs(study), 0.65)
    assert [g.mechanism.name for g in paper.groups] == ["dystop", "slow"]
    assert [g.mechanism.name for g in overlap.groups] == ["slow", "dystop"]
    time = paper.results[0]
    assert (time.title, time.cells[0].text) == ("time to 65 %", "20 s")
    assert (time.cells[1].text, time.cells[1].note) == ("30 s", "in 1 of 2 seeds")
    assert [c.best for c in time.cells] == [True, False]
    moved = rank_changes([paper, overlap], 0.65)
    assert [(m.group.mechanism.name, m.change) for m in moved] == [
        ("dystop", "down 1"),
        ("slow", "up 1"),
    ]
    assert moved[1].ranks == ["2. 30 s, 1 of 2 seeds", "1. 10 s"]
    never = rank_groups(group_runs(study), 0.95)[0]
    assert [c.text for c in never.results[0].cells] == ["not reached", "not reached"]
    assert never.results[0].cells[0].note == "in 0 of 2 seeds"
    assert [g.mechanism.name for g in never.groups] == ["dystop", "slow"]


def test_a_mean_over_some_seeds_is_never_the_best():
    runs = [hand("a", 0, 0.9), hand("a", 1, 0.1), hand("b", 0, 0.1, 0.9), hand("b", 1, 0.1, 0.9)]
    (ranking,) = rank_groups(group_runs(runs), 0.8)
    assert [g.mechanism.name for g in ranking.groups] == ["b", "a"]
    assert [c.best for c in ranking.results[0].cells] == [True, False]


def test_target_is_asked_for_or_stopped_at_or_shared(study):
    every = group_runs(study)
    assert choose_target(every, 0.42).accuracy == 0.42
    stop = [replace(r, config={**r.config, "stop": {"accuracy": 0.55}}) for r in study]
    assert choose_target(group_runs(stop), None).accuracy == 0.55
    # worst best of each group: 0.8, 0.6, 0.8, 0.9
    assert shared_target(every)[0] == 0.8
    one = group_runs([hand("a", 0, 0.1), hand("b", 0, 0.1), hand("c", 0, 0.62)])
    assert shared_target(one)[0] == 0.6
    assert shared_target(group_runs([hand("a", 0, 0.1)])) == (None, "")


def test_curves_are_means_where_all_seeds_have_data():
    long, short = hand("a", 0, 0.2, 0.4, 0.6), hand("a", 1, 0.4, 0.8, step_s=5.0)
    (group,) = group_runs([long, short])
    line = mean_curve(group, clock_s, lambda r: r.accuracy)
    assert line.x.tolist() == [10.0]  # one ends where the other begins
    assert (line.low[0], line.mean[0], line.high[0]) == (0.2, pytest.approx(0.5), 0.8)
    assert line.covers_little
    (group,) = group_runs([long, hand("a", 1, 0.4, 0.6, 0.6, step_s=8.0)])
    line = mean_curve(group, clock_s, lambda r: r.accuracy)
    assert line.x.tolist() == [10.0, 16.0, 20.0, 24.0]
    assert line.mean[1] == pytest.approx((0.32 + 0.6) / 2)
    assert common_time_s([group]) == 24.0


def test_a_common_time_is_one_by_which_every_run_was_tested():
    early, late = hand("a", 0, 0.2, 0.4), hand("b", 0, 0.9, 0.9, step_s=20.0)
    assert common_time_s(group_runs([early, late])) == 20.0
    late = hand("b", 0, 0.9, step_s=21.0)  # first tested when `a` had ended
    every = group_runs([early, late])
    assert common_time_s(every) is None
    titles = [column.title for column in rank_groups(every, 0.3)[0].results]
    assert not any(title.startswith("accuracy at") for title in titles)
    assert common_time_s([]) is common_time_s(group_runs([early, hand("b", 0)])) is None
    assert "common time" not in " ".join(study_notices(group_runs([early, replace_end(late)])))
    near = group_runs([early, hand("b", 0, 0.9, 0.9, step_s=20.0)])
    assert "common time" in " ".join(study_notices(near))


def replace_end(run):
    """The run with one more round that was not tested."""
    return replace(run, records=[*run.records, plain_record(2, 90.0)])


def test_means_over_some_seeds_say_so_and_nobody_wins():
    runs = [hand("a", 0, 0.9), hand("a", 1), hand("b", 0, 0.5), hand("b", 1, 0.5)]
    (ranking,) = rank_groups(group_runs(runs), 0.4)
    final = next(c for c in ranking.results if c.title == "final accuracy")
    assert {(c.text, c.note) for c in final.cells} == {
        ("90.0 %", "in 1 of 2 seeds"),
        ("50.0 ± 0.0 %", ""),
    }
    assert not any(c.best for c in final.cells)


def test_page_is_complete_and_says_what_it_is(study, tmp_path):
    files = write_study(study, tmp_path, title="a <b> study", formats=("pdf",)).files
    page = files.html.read_text()
    assert {f.stem for f in files.figures} == {
        f"{k}-{law}" for k in KEYS for law in ("paper", "overlap")
    }
    for words in (
        "a &lt;b&gt; study", "2 mechanisms", "2 seeds each", "both timing laws", "8 runs",
        "Seeds 0, 1.",
        "slow (reconstruction)", "dystop (paper)", "sample standard deviation", "time to 80 %",
        "2 of 2 rows change their rank", "up 1", "down 1",
        "is a reconstruction", "dystop-s0 (finished)", "not reached", "idle share",
        "data split, initial model and channel draws",
    ):  # fmt: skip
        assert words in page.replace("&#39;", "'"), words
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', page)) <= set(ids)


def test_settings_of_one_mechanism_are_not_called_mechanisms(tmp_path):
    runs = [hand("dystop", 0, 0.5), hand("dystop", 0, 0.6)]
    for run, v in zip(runs, (1, 10), strict=True):
        run.config["mechanism"] = {"name": "dystop", "V": v}
    page = write_study(runs, tmp_path, title="V", formats=("png",)).files.html.read_text()
    assert "1 mechanism in 2 settings" in page
    assert "2 runs" in page


def test_nothing_is_drawn_against_rounds(study):
    plots = draw_groups(group_runs(study)[:2], 0.7)
    assert {plot.key for plot in plots} == KEYS
    for plot in plots:
        assert plot.figure is not None
        assert all(not axes.get_xlabel().startswith("round") for axes in plot.figure.axes)
        assert plot.alt


def test_one_law_one_seed_one_mechanism(tmp_path):
    page = write_study(
        [hand("dystop", 4, 0.6, 0.9)], tmp_path, title="one", formats=()
    ).files.html.read_text()
    assert "One seed each" in page
    assert "1 runs" not in page
    assert "1 mechanism, 1 seed each" in page
    assert "timing law?" not in page
    assert "band: lowest" not in page


def test_empty_runs_still_give_a_page(tmp_path):
    page = write_study(
        [hand("a", 0), hand("b", 0)], tmp_path, title="x", formats=()
    ).files.html.read_text()
    assert "a-s0 has not closed a round" in page
    assert "no target" in page


def test_warnings_where_a_comparison_is_not_fair(study):
    assert all(
        "same seeds" not in n and "share one fleet" not in n
        for n in study_notices(group_runs(study))
    )
    fleet = {**study[1].fleet, "label_counts": [[1]]}
    odd = [study[0], replace(study[1], fleet=fleet)]
    assert any("one fleet" in n for n in study_notices(group_runs(odd)))
    assert not any("Within a seed" in n for n in study_notes(group_runs(odd)))
    swept = replace(odd[1], config={**odd[1].config, "data": {"phi": 1.0}})
    assert not any("one fleet" in n for n in study_notices(group_runs([odd[0], swept])))
    assert not any("Within a seed" in n for n in study_notes(group_runs([odd[0], swept])))
    assert not any("one data split" in n for n in notices([odd[0], swept]))
    assert any("one data split" in n for n in notices(odd))
    apart = [hand("a", 0, 0.5), hand("b", 1, 0.5, step_s=20.0)]
    text = " ".join(study_notices(group_runs(apart)))
    assert "from 10 s (a (paper)) to 20 s (b (paper))" in text
    uneven = [hand("a", 0, 0.5), hand("a", 1, 0.5), hand("b", 0, 0.5)]
    assert any("same seeds" in n for n in study_notices(group_runs(uneven)))


def test_mistakes_are_named(study, tmp_path):
    with pytest.raises(ConfigError, match="at least one run"):
        write_study([], tmp_path, title="x")
    with pytest.raises(ConfigError, match="target accuracy is 80"):
        write_study(study, tmp_path, title="x", target=80)


def test_staleness_staleness_bins_cover_what_occurred():
    assert _staleness_bins(1) == [(0, 0)]
    assert _staleness_bins(12) == [(0, 0), (1, 1), (2, 2), (3, 4), (5, 9), (10, 11)]
    assert _staleness_bins(500)[-1] == (100, 499)


def test_a_dozen_mechanisms_fit(tmp_path):
    runs = [
        fake_run(f"m{k}-s{s}", f"mech-{k}", "reconstruction", rounds=12, workers=5, seed=s, every=2)
        for k in range(13)
        for s in (0, 1)
    ]
    for k, run in enumerate(runs):
        run.config["mechanism"]["V"] = k // 2
    report = write_study(runs, tmp_path, title="many", formats=())
    assert report.files.html.read_text().count("mech-12 (reconstruction)") >= 6


def test_the_headline_says_what_the_other_law_changes(study, tmp_path):
    found = study_results(study, 0.7)
    assert found.order == (
        "The first place changes with the timing law: dystop (paper) is first under paper; "
        "slow (reconstruction) is first under overlap. 2 of 2 rows change their rank; dystop "
        "(paper) and slow (reconstruction) change places by more than a tie."
    )
    page = write_study(study, tmp_path, title="t", target=0.7, formats=()).files.html.read_text()
    assert f'<p class="lead">{found.order}</p>' in page
    same = [
        hand(name, 0, score, timing=law)
        for law in ("paper", "overlap")
        for name, score in {"dystop": 0.9, "slow": 0.5}.items()
    ]
    kept = "dystop (paper) is first under both timing laws. Every row keeps its rank."
    assert study_results(same).order == kept
    assert study_results(same[:2]).order == ""


def test_rows_that_swap_within_a_tie_are_said_to_tie():
    """The two reach the target in neighbouring evaluations, so that neither is clearly ahead."""
    runs = [
        hand("dystop", 0, 0.5, 0.8, 0.8),
        hand("slow", 0, 0.5, 0.6, 0.8),
        hand("dystop", 0, 0.5, 0.6, 0.8, timing="overlap"),
        hand("slow", 0, 0.5, 0.8, 0.8, timing="overlap"),
    ]
    order = study_results(runs, 0.7).order
    tie = "dystop (paper) and slow (paper) tie for the first place under both timing laws."
    assert order.startswith(tie)
    assert "2 of 2 rows change their rank, but no two of them" in order
    assert "survives" not in order


def test_a_tie_under_one_law_alone_is_said():
    runs = [
        hand("dystop", 0, 0.5, 0.6, 0.8),
        hand("slow", 0, 0.5, 0.8, 0.8),
        hand("dystop", 0, 0.5, 0.6, 0.6, 0.8, timing="overlap"),
        hand("slow", 0, 0.8, timing="overlap"),
    ]
    order = study_results(runs, 0.7).order
    assert "slow (paper) and dystop (paper) tie for the first place under paper" in order
    assert "slow (paper) is first under overlap" in order


def test_without_a_target_the_laws_are_compared_by_final_accuracy(tmp_path):
    """No run reaches a default target, and the rows change places by far."""
    scores = {"paper": {"dystop": 0.3, "ad-psgd": 0.1}, "overlap": {"dystop": 0.3, "ad-psgd": 0.45}}
    runs = [
        hand(name, seed, 0.05, score + 0.01 * seed, timing=law)
        for law, by_name in scores.items()
        for name, score in by_name.items()
        for seed in (0, 1)
    ]
    found = study_results(runs)
    assert found.target.accuracy is None
    assert "ad-psgd (paper) is first under overlap" in found.order
    dystop, _ = rank_changes(found.rankings, None)
    assert dystop.ranks == ["1. 30.5 ± 0.7 %", "2. 30.5 ± 0.7 %"]
    page = write_study(runs, tmp_path, title="t", formats=()).files.html.read_text()
    assert "rank and final accuracy" in page
    scores = {"dystop": (0.30, 0.34), "ad-psgd": (0.31, 0.32)}  # a lead within its spread
    close = [
        hand(name, seed, by_seed[seed], timing=law)
        for law, names in {"paper": ("dystop", "ad-psgd"), "overlap": ("ad-psgd", "dystop")}.items()
        for name, by_seed in zip(names, scores.values(), strict=True)
        for seed in (0, 1)
    ]
    order = study_results(close).order
    assert "tie for the first place under both timing laws. 2 of 2 rows change" in order


def test_planning_only_has_no_order_that_could_survive():
    planned = [
        replace(run, config={**run.config, "engine": {**run.config["engine"], "train": False}})
        for law in ("paper", "overlap")
        for run in (hand("dystop", 0, None, timing=law), hand("slow", 0, None, timing=law))
    ]
    assert study_results(planned).order == ""


def test_the_page_states_the_readings_of_all_runs(study):
    old = hand("dystop", 0, 0.9)  # its configuration is older than some keys
    new = hand("asydfl", 0, 0.9)
    new = replace(new, config={**new.config, "reading": "literal",
                               "mechanism": {"name": "asydfl", "wakes": "one"},
                               "world": {"channel": {"noise": "squared"}}})  # fmt: skip
    (line,) = [note for note in study_notes(group_runs([old, new])) if "Readings" in note]
    assert "literal: noise power, squared; fading draws 8; timing law paper" in line
    assert "who wakes one (asydfl)" in line


def test_the_readings_of_a_testbed_run_name_its_law():
    run = hand("dystop", 0, 0.9)
    real = replace(run, info={**run.info, "kind": "testbed"})
    assert "timing law testbed" in readings_note([real])
    assert "timing law paper" in readings_note([run])


def waiting(run, share):
    """The same run, whose workers wait for rounds this share of the time and train the rest."""
    records = [
        changed(
            r,
            compute_s=(1 - share) * r.alive * r.duration_s,
            transfer_s=0.0,
            wait_others_s=0.0,
        )
        for r in run.records
    ]
    return replace(run, records=records)


def test_a_mechanism_that_the_papers_law_serialises_is_named(study):
    few = [waiting(hand("ad-psgd", seed, 0.3, 0.4), 0.55) for seed in (0, 1)]
    many = waiting(hand("dystop", 0, 0.3, 0.4), 0.49)
    (notice,) = [n for n in study_notices(group_runs([*few, many])) if "waits for rounds" in n]
    assert notice.startswith("ad-psgd waits for rounds 55.0 % of the time")
    assert "engine.timing=overlap" in notice
    assert "--timing both" in notice
    free = waiting(hand("ad-psgd", 0, 0.3, timing="overlap"), 0.95)
    assert not [n for n in notices([free]) if "waits for rounds" in n]
    real = replace(few[0], info={**few[0].info, "kind": "testbed"})
    assert not [n for n in notices([real]) if "waits for rounds" in n]
    (beside,) = [n for n in notices([few[0], free]) if "waits for rounds" in n]
    assert "--timing both" not in beside  # both were run


def test_waiting_for_slower_workers_is_not_the_laws_fault():
    run = waiting(hand("d-psgd", 0, 0.3), 0.6)
    (row,) = run.records
    slow = replace(run, records=[changed(row, wait_others_s=0.6 * row.alive * row.duration_s)])
    assert not [n for n in notices([slow]) if "waits for rounds" in n]


def planned(runs, *clocks_s):
    """The clock of every evaluation under the law `overlap`, run by run."""
    return OtherLaw("overlap", {run.name: c for run, c in zip(runs, clocks_s, strict=True)})


def test_what_the_other_law_would_change_is_said_of_planned_runs():
    runs = [hand("dystop", 0, 0.5, 0.8, 0.8), hand("ad-psgd", 0, 0.5, 0.6, 0.6, 0.6, 0.8)]
    assert study_results(runs, 0.7).order == ""

    def order(*clocks_s):
        return study_results(runs, 0.7, planned=planned(runs, *clocks_s)).order

    faster = order([10, 19, 29], [1, 2, 3, 4, 5])
    assert "would change, from dystop (paper) to ad-psgd (paper), at 70 % after 5 s" in faster
    assert "estimate" in faster
    assert "--timing both" in faster
    assert "would stay with dystop (paper)" in order([10, 19, 29], [10, 20, 30, 40, 50])
    tie = order([10, 19, 29], [5, 10, 15, 18, 20])
    assert "would change, from dystop (paper) to a tie of dystop (paper) and ad-psgd" in tie


def test_planned_runs_are_tested_as_seldom_as_real_ones():
    runs = [
        replace(run, config={**run.config, "evaluate": {"every_s": 10.0}})
        for run in (hand("dystop", 0, 0.5, 0.8, 0.8), hand("ad-psgd", 0, 0.5, 0.6, 0.6, 0.8))
    ]
    clocks = planned(runs, [10, 18, 29], [1, 5, 9, 12])
    order = study_results(runs, 0.7, planned=clocks).order
    assert "to a tie of ad-psgd (paper) and dystop (paper)" in order


def test_a_row_that_would_train_more_than_it_did_leaves_the_first_place_open():
    runs = [hand("dystop", 0, 0.5, 0.8), hand("ad-psgd", 0, 0.5, 0.6)]

    def order(*clocks_s):
        return study_results(runs, 0.7, planned=planned(runs, *clocks_s)).order

    assert "the first place is open: ad-psgd (paper)" in order([10, 19], [3, 6])
    assert "would stay with dystop (paper)" in order([10, 19], [12, 24])
    assert "would stay with dystop (paper)" in order([10, 19], [3])  # its planned run ended
    assert study_results(runs, 0.9, planned=planned(runs, [1, 2], [1, 2])).order == ""
