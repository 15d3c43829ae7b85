"""What workers did with their time: shares that add up to one, in tables, bars and words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.report.data.comparison.headline import headline
from dystop.report.data.comparison.ranking import rank_groups
from dystop.report.data.comparison.study_results import study_results
from dystop.report.data.groups import group_runs
from dystop.report.data.scores import score_of
from dystop.report.data.time_shares import (
    TimeShares,
    mean_shares,
    share_bar,
    share_texts,
    time_shares,
)
from dystop.report.pages.study import write_study
from support.fake_runs import changed, fake_run, plain_record

seconds = st.floats(0, 1e6)


@st.composite
def records(draw):
    """Rounds of a few workers, each of whose seconds are divided among the four parts."""
    rows = []
    for t in range(1, draw(st.integers(1, 5)) + 1):
        alive, duration = draw(st.integers(1, 100)), draw(st.floats(1e-3, 1e4))
        cuts = sorted(draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)))
        parts = [alive * duration * (b - a) for a, b in zip([0.0, *cuts], cuts, strict=False)]
        more = dict(zip(("compute_s", "transfer_s", "wait_others_s"), parts, strict=True))
        rows.append(plain_record(t, duration * t, alive=alive, duration_s=duration, **more))
    return rows


@given(records())
def test_shares_add_up_to_one(rows):
    shares = time_shares(rows)
    assert sum(shares.parts) == pytest.approx(1.0)
    assert min(shares.parts) >= 0
    assert sum(int(text.removesuffix(" %")) for text in share_texts(shares)) == 100
    assert len(share_bar(shares)) == 20


def spending(mechanism, seed=0, reached=2, **spent):
    """A run of four rounds of 40 worker-seconds each that reaches 70 % in one of them."""
    rows = [
        plain_record(t, 10.0 * t, accuracy=0.8 if t >= reached else 0.2, **spent)
        for t in range(1, 5)
    ]
    return replace(fake_run(f"{mechanism}-{seed}", mechanism, rounds=0, seed=seed), records=rows)


def test_shares_by_hand():
    """Of 40 worker-seconds a round, 20 compute, 4 transfer, 10 wait for others and 6 are left."""
    run = spending("a", compute_s=20.0, transfer_s=4.0, wait_others_s=10.0)
    assert time_shares(run.records) == TimeShares(0.5, 0.1, 0.25, pytest.approx(0.15))


def test_only_rounds_until_the_target_count():
    run = spending("a", compute_s=40.0, transfer_s=0.0, wait_others_s=0.0)
    late = [changed(r, compute_s=0.0) if r.round > 2 else r for r in run.records]
    run = replace(run, records=late)
    assert mean_shares([run], 0.7).computing == 1.0
    assert mean_shares([run], None).computing == 0.5
    assert mean_shares([run], 0.99).computing == 0.5


def test_the_headline_says_why():
    fast = spending("a", compute_s=20.0, transfer_s=4.0, wait_others_s=10.0)
    slow = spending("b", reached=4, compute_s=10.0, transfer_s=4.0, wait_others_s=26.0)
    (ranking,) = rank_groups(group_runs([fast, slow]), 0.7)
    text = headline(ranking.groups, 0.7)
    assert "computed 50 % (25 %), transferred 10 % (10 %) and waited 40 % (65 %)" in text


def test_a_tie_has_no_star():
    runs = [spending(name, seed, reached=2) for name in "ab" for seed in (0, 1)]
    time = rank_groups(group_runs(runs), 0.7)[0].results[0]
    assert not any(cell.best for cell in time.cells)
    assert all("tie" in cell.note for cell in time.cells)
    runs = [spending("a", reached=1), spending("b", reached=4)]
    time = rank_groups(group_runs(runs), 0.7)[0].results[0]
    assert [cell.best for cell in time.cells] == [True, False]


def test_another_score_keeps_its_unit(tmp_path):
    runs = [spending("a"), spending("b", reached=3)]
    runs = [
        replace(run, records=[changed(r, score_name="r2") for r in run.records]) for run in runs
    ]
    assert score_of(runs).aim(0.7) == "r2 0.7"
    results = study_results(runs, 0.7)
    (ranking,) = results.rankings
    final = next(c for c in ranking.results if c.title == "final r2")
    assert [cell.text for cell in final.cells] == ["0.800", "0.800"]
    assert ranking.results[0].title == "time to r2 0.7"
    assert "first to r2 0.7" in results.headlines[0] or "place to r2 0.7" in results.headlines[0]
    page = write_study(runs, tmp_path, title="t", target=0.7, formats=()).files.html.read_text()
    assert "70 %" not in page
    assert "80.0 %" not in page
