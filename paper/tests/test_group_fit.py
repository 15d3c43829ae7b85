"""Whether the data sets of a search over readings agree about which reading is near."""

import csv
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from dystop_paper.data.group_fit import fit_sentences, fits, rank_correlation
from dystop_paper.data.nearness import GROUPS, ReadingResult
from dystop_paper.reproduce.distance import Number
from dystop_paper.reproduce.reading_space import reading_named

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SEARCHES = ("small", "testbed", "settings")


def reading(name: str, **ours: float) -> ReadingResult:
    """Return a reading with one number in each of these groups; the paper states 1."""
    numbers = tuple(Number(f"main-{g}: n", "time", 1.0, v, group=g) for g, v in ours.items())
    return ReadingResult(reading_named(name), 1, None, numbers, (), groups=frozenset(ours))


def told(results: list[ReadingResult]) -> str:
    return " ".join(fit_sentences(results))


def test_every_pair_of_groups_with_three_readings_has_a_rank_correlation() -> None:
    results = [
        reading("r001", fmnist=1.1, svhn=1.1, cifar100=3.0),
        reading("r002", fmnist=1.2, svhn=1.2, cifar100=2.0),
        reading("r003", fmnist=1.3, svhn=1.3),
        reading("r004", svhn=1.4, cifar100=1.5),
    ]
    assert "1.00 on Fashion-MNIST and SVHN (3 readings)" in told(results)
    assert "-1.00 on SVHN and CIFAR-100 (3 readings)" in told(results)
    assert "Fashion-MNIST and CIFAR-100" not in told(results)  # they share two
    assert "Rank correlation" not in told(results[:2])


def test_readings_that_are_all_equally_near_have_no_order() -> None:
    results = [reading(f"r00{k}", fmnist=1.0 + k, svhn=2.0) for k in range(1, 5)]
    assert rank_correlation(*fits(results)) is None
    assert "Rank correlation" not in told(results)


FACTORS = st.sampled_from([1.1, 1.2, 1.5, 2.0, 3.0])


@given(st.lists(st.tuples(FACTORS, FACTORS), min_size=3, max_size=8))
def test_equal_distances_share_their_ranks(factors) -> None:
    results = [reading(f"r{k:03}", fmnist=a, svhn=b) for k, (a, b) in enumerate(factors, 1)]
    found = rank_correlation(*fits(results))
    if any(len(set(column)) == 1 for column in zip(*factors, strict=True)):
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(*zip(*factors, strict=True)).statistic)


# The published search


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((RESULTS / "readings" / name).read_text().splitlines()))


@pytest.fixture(scope="module")
def published() -> list[ReadingResult]:
    """Return the readings of the results page, from the tables beside it."""
    numbers, groups = defaultdict(list), defaultdict(set)
    for search in SEARCHES:
        for row in rows(f"{search}-numbers.csv"):
            ours = float(row["ours"]) if row["ours"] else None
            paper, beyond = float(row["paper"]), int(row["beyond"])
            known = Number(row["number"], row["measure"], paper, ours, beyond, row["data"])
            numbers[row["reading"]].append(known)
        for row in rows(f"{search}-readings.csv"):
            groups[row["reading"]] |= {g for g in GROUPS if row.get(f"distance_{g}")}
    return [
        ReadingResult(reading_named(name), 1, None, tuple(numbers[name]), (),
                      groups=frozenset(have))
        for name, have in groups.items()
    ]  # fmt: skip


def test_the_page_of_readings_has_the_rank_correlations_of_its_tables(published) -> None:
    page = " ".join((RESULTS / "readings.md").read_text().split())
    stated = re.findall(r"rank correlation of ([\w-]+) and ([\w-]+) is (0\.\d+)", page)
    assert stated
    for one, other, value in stated:
        assert f"{value} on {one} and {other} (" in told(published)
    assert "0.02 on Fashion-MNIST and SVHN (27 readings)" in told(published)
    assert "0.15 on CIFAR-10 and SVHN (20 readings)" in told(published)


def test_the_tables_beside_the_page_agree(published) -> None:
    """The distances of one table are those of the numbers of the other."""
    results = {result.reading.name: result for result in published}
    for search in SEARCHES:
        for row in rows(f"{search}-readings.csv"):
            for group in GROUPS:
                if known := row.get(f"distance_{group}"):
                    ours = results[row["reading"]].distance_on(group)
                    assert ours == pytest.approx(float(known), abs=1e-4)


def test_pairs_are_told_in_the_order_of_the_groups(published) -> None:
    sentence = fit_sentences(published)[-1]
    pairs = re.findall(r"\d on (.+?) and (.+?) \(\d+ readings\)", sentence)
    assert pairs == list(combinations((fit.name for fit in fits(published)), 2))
