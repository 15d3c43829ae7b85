"""The headline of a comparison, reckoned by hand: wins, ties, and what nobody reached."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dystop.report.data.comparison.headline import headline
from dystop.report.data.comparison.leads import Lead
from dystop.report.data.comparison.ranking import rank_groups
from dystop.report.data.comparison.study_results import study_results
from dystop.report.data.groups import group_runs
from support.fake_runs import fake_run, plain_record


def run_of(mechanism, seed, reached_s, step_s=1.0):
    """A run that is evaluated every `step_s` and reaches 70 % at one of these times."""
    clocks = [step_s * k for k in range(1, 1 + round(100 / step_s))]
    rows = [
        plain_record(t, clock, accuracy=0.8 if clock >= reached_s else 0.2, idle_s=20.0)
        for t, clock in enumerate(clocks, 1)
    ]
    return replace(fake_run(f"{mechanism}-s{seed}", mechanism, rounds=0, seed=seed), records=rows)


def headline_of(arrivals, step_s=1.0, target=0.7):
    """The headline of mechanisms that arrive at these times, seed by seed."""
    runs = [
        run_of(name, seed, reached_s, step_s)
        for name, times in arrivals.items()
        for seed, reached_s in enumerate(times)
    ]
    (ranking,) = rank_groups(group_runs(runs), target)
    return headline(ranking.groups, target)


def test_a_win_names_its_lead_and_its_cost():
    """Leads of 10, 12 and 14 s: 12 s on average, with a deviation of 2 s."""
    text = headline_of({"a": (20, 20, 20), "b": (30, 32, 34)})
    assert text.startswith(
        "a (paper) is first to 70 %, after 20 s, 12 ± 2 s (37 %) before b (paper), in 3 of 3 seeds."
    )
    assert "trained 10 (16) epochs, moved 6 kB (9.60 kB), computed 60 % (60 %)" in text
    assert text.endswith("in brackets b (paper).")


def test_a_lead_within_one_evaluation_interval_is_a_tie():
    text = headline_of({"a": (20,), "b": (30,)}, step_s=10.0)
    assert text.startswith("a (paper) and b (paper) tie for the first place to 70 %")
    assert "b (paper) is 10 s behind, within one evaluation interval (10 s)." in text


def test_a_lead_within_its_spread_is_a_tie_and_the_next_one_is_named():
    text = headline_of({"a": (20, 40), "b": (50, 30), "c": (60, 80)})
    assert "b (paper) is 10 s behind, within its spread over the seeds." in text
    assert "c (paper) comes next, 40 ± 0 s later." in text


def test_nobody_first_where_nobody_arrives_with_every_seed():
    assert headline_of({"a": (20, 200), "b": (200, 200)}) == "No row reached 70 % with every seed."
    alone = headline_of({"a": (20, 30), "b": (10, 200)})
    assert alone.startswith("a (paper) is first to 70 %, after 25 s; no other row reached it")
    assert headline_of({"a": (20,)}) == ""
    assert headline_of({"a": (20,), "b": (30,)}, target=None) == ""


def test_both_laws_have_a_headline_each():
    runs = [run_of("a", 0, 20), run_of("b", 0, 30)]
    other = [
        replace(r, info={**r.info, "timing": "overlap"}, config={**r.config, "law": 1})
        for r in runs
    ]
    found = study_results([*runs, *other], target=0.7).headlines
    assert [text.split(":")[0] for text in found] == [
        "Under the paper law",
        "Under the overlap law",
    ]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.integers(1, 9))
def test_a_lead_that_every_seed_has_by_far_is_a_win(gaps, spread):
    lead = Lead(tuple(100.0 + 0.1 * g for g in gaps), float(spread), 0.5)
    assert lead.doubt == ""
    assert Lead((0.0, *lead.gaps_s), 1e9, 0.5).doubt != ""
