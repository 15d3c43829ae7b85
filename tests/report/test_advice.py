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


def test_a_tie_is_called_a_tie():
    close = made("ad-psgd", (9.0, 5e6, 30.0), (14.0, 5e6, 30.0))
    said = advised(FAST, close).sentences[1]
    assert "tie with ad-psgd" in said
    assert "ahead in 1 of 2 seeds" in said


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
