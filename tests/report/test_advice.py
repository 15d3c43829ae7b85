"""The sentences of an advice: the winner, the runner-up, ties, other goals, and who is missing."""

from dystop.report.data.contests.advice import Advice, StageResult, advice_csv, table
from dystop.report.data.contests.winners import Contender, Costs, all_contests


def made(name, *costs, provenance="paper", server=False):
    """A contender with (time, traffic, compute) per seed; None: not reached."""
    by_seed = {str(k): None if c is None else Costs(*c) for k, c in enumerate(costs)}
    return Contender(name, by_seed, dict.fromkeys(by_seed, 0.6), provenance, server)


def advised(*contenders, goal="time", target=0.6):
    stage = StageResult(20.0, 2, all_contests(contenders, target), ())
    return Advice(goal, (stage,))


FAST = made("matcha", (10.0, 4e6, 20.0), (12.0, 4e6, 20.0))
CHEAP = made("dystop", (15.0, 1e6, 10.0), (18.0, 1e6, 10.0))


def test_worked_example():
    said = advised(CHEAP, FAST).sentences
    assert said[0].startswith("Take matcha: it reaches 60 % first, after 11.0 s")
    assert "dystop, 1.50 times the time" in said[1]
    assert "ahead in 2 of 2 seeds" in said[1]
    assert "trains 1.83 epochs in a second" in said[2]
    assert "needs 20 epochs" in said[2]
    assert "dystop: 10)" in said[2]
    assert "with least traffic: dystop (1 MB to 60 %)" in said[3]
    assert len(said) == 4


def test_each_goal_has_its_own_winner_and_reason():
    traffic, compute = (
        advised(FAST, CHEAP, goal=goal).sentences for goal in ("traffic", "compute")
    )
    assert traffic[0].startswith("Take dystop: it reaches 60 % with least traffic, 1 MB")
    assert "sends 100 kB per epoch (matcha: 200 kB)" in traffic[2]
    assert compute[0].startswith("Take dystop: it reaches 60 % with least compute, 10 epochs")


CLOSE = made("ad-psgd", (9.0, 3e6, 16.0), (14.0, 3e6, 16.0))


def test_a_tie_leads_and_is_broken_by_the_other_costs():
    first, *others = advised(FAST, CLOSE).sentences
    assert first.startswith("matcha (11.0 s) and ad-psgd (11.2 s) tie in time to 60 %")
    assert "ahead of ad-psgd in 1 of 2 seeds" in first
    assert "Take ad-psgd" in first
    assert "25 % less traffic (3 MB; matcha: 4 MB)" in first
    assert "20 % less compute (16 epochs; matcha: 20 epochs)" in first
    assert not [said for said in others if said.startswith(("Take", "Runner-up", "Why"))]


def test_of_a_tie_the_winner_is_taken_where_it_costs_less_otherwise():
    dear = made("ad-psgd", (9.0, 5e6, 20.0), (14.0, 5e6, 20.0))
    first = advised(FAST, dear).headline
    assert "Take matcha" in first
    assert "20 % less traffic" in first
    assert "about as much compute" in first


def test_a_tie_that_the_other_costs_do_not_break_stays_one():
    mixed = made("ad-psgd", (9.0, 5e6, 16.0), (14.0, 5e6, 16.0))
    first = advised(FAST, mixed).headline
    assert "Take" not in first
    assert "matcha with 20 % less traffic" in first
    assert "ad-psgd with 20 % less compute" in first
    equal = made("ad-psgd", (9.0, 4e6, 20.0), (14.0, 4e6, 20.0))
    assert "Take any of matcha and ad-psgd" in advised(FAST, equal).headline


def test_who_is_behind_a_tie_is_the_runner_up():
    said = advised(FAST, CLOSE, CHEAP).sentences
    assert said[1].startswith("Runner-up: dystop, 1.50 times the time of matcha")
    assert "ahead in 2 of 2 seeds" in said[1]


def test_a_tie_of_three_is_broken_by_who_undercuts_both():
    third = made("asydfl", (11.0, 2e6, 12.0), (12.0, 2e6, 12.0))
    first = advised(FAST, CLOSE, third).headline
    assert "Take asydfl" in first
    assert "less traffic (2 MB; matcha: 4 MB; ad-psgd: 3 MB)" in first


def test_reconstructions_servers_and_missing_ones_are_named():
    server = made("fedavg", (5.0, 1e6, 9.0), (5.0, 1e6, 9.0), server=True)
    rebuilt = made("hadfl", (9.0, 1e6, 9.0), None, provenance="RECONSTRUCTION (no code)")
    said = " ".join(advised(server, rebuilt, FAST).sentences)
    assert "fedavg needs a base station" in said
    assert "--no-server" in said
    assert "Not at 60 % with every seed: hadfl (reconstruction)" in said


def test_nobody_learned_anything():
    advice = advised(made("a", None), made("b", None), target=None)
    assert "--seconds" in advice.headline
    assert len(advice.sentences) == 2
    assert all(row[3] == "–" for row in table(advice))


def test_table_and_csv_show_each_mechanism_in_its_last_stage():
    first = StageResult(5.0, 1, all_contests([FAST, CHEAP, made("l2pl", None)], 0.4), ("matcha",))
    last = StageResult(20.0, 2, all_contests([FAST], 0.6), ())
    advice = Advice("time", (first, last))
    assert [(row[0], row[1], row[2]) for row in table(advice)] == [
        ("matcha", "2", "60 %"), ("dystop", "1", "40 %"), ("l2pl", "1", "40 %"),
    ]  # fmt: skip
    assert len(advice_csv(advice).splitlines()) == 1 + 3 + 1
