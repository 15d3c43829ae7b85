"""Cells: who belongs to which coordinator, and what each of them may decide."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.cells import (
    budgets_of_cells,
    cells_of,
    cut,
    fleet_of_cell,
    join_plans,
    observation_of_cell,
    outcomes_of_cells,
    with_border,
)
from dystop.control.round import build_view, decide, initial_state
from dystop.control.topology import bandwidth_use
from dystop.mechanisms.dystop import DySTop
from dystop.sparse import graph_of, ints
from dystop.types import Fleet, Observation, Outcome
from support.strategies import same


def halved(position, size, workers=None):
    """The plain twin of `cells_of`: lists of workers, cell by cell."""
    workers = range(len(position)) if workers is None else workers
    if len(workers) <= size:
        return [sorted(workers)]
    spans = [max(position[i][a] for i in workers) - min(position[i][a] for i in workers)
             for a in (0, 1)]  # fmt: skip
    axis = 0 if spans[0] >= spans[1] else 1
    order = sorted(workers, key=lambda i: (position[i][axis], i))
    half = (len(order) + 1) // 2
    return halved(position, size, order[:half]) + halved(position, size, order[half:])


@st.composite
def places(draw, least=1):
    n = draw(st.integers(least, 24))
    spot = st.integers(0, 12).map(float)
    position = np.array(draw(st.lists(st.tuples(spot, spot), min_size=n, max_size=n)))
    return position, draw(st.integers(1, n + 1))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(places())
def test_every_worker_is_in_one_cell_of_at_most_the_size(case):
    position, size = case
    cell = cells_of(position, size)
    found = [np.flatnonzero(cell == c).tolist() for c in range(cell.max() + 1)]
    assert found == halved(position.tolist(), size)
    assert max(map(len, found)) <= size
    assert sorted(worker for workers in found for worker in workers) == list(range(len(position)))


def test_halves_are_equal_and_ties_go_to_the_lower_id():
    position = np.zeros((7, 2))
    assert cells_of(position, 4).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert cells_of(position, 7).tolist() == [0] * 7
    with pytest.raises(ValueError, match="size = 0"):
        cells_of(position, 0)


@st.composite
def rounds(draw):
    """A fleet at random places in random reach, with budgets, and the size of a cell."""
    position, size = draw(places(least=2))
    n, range_m = len(position), draw(st.sampled_from([2.0, 4.0, 7.0, 20.0]))
    near = np.hypot(*(position[:, None] - position[None]).transpose(2, 0, 1)) <= range_m
    reach = graph_of(n, *np.nonzero(near))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seen = Observation(
        alive=np.ones(n, bool),
        reach=reach,
        distance_m=rng.uniform(1, 10, reach.edges),
        link_s=rng.uniform(0.1, 1, reach.edges),
        step_s=np.ones(n),
        remaining_s=rng.uniform(0, 3, n),
        budget=rng.choice([0.0, 1.0, 3.0, 6.0, np.inf], n),
    )
    counts = rng.integers(1, 9, (n, 3))
    fleet = Fleet(counts.sum(axis=1), counts, 4, 1000, 10, 7)
    control = replace(
        initial_state(fleet, DySTop()),
        t=draw(st.integers(1, 9)),
        staleness=rng.integers(0, 6, n),
        queue=rng.choice([0.0, 50.0], n),
        version=rng.integers(0, 5, n),
    )
    return cells_of(position, size), seen, fleet, control


def decisions(case):
    """All cells of a case, with the plan of each."""
    cell_of, seen, fleet, control = case
    cells, plans = cut(seen.reach, cell_of), []
    budgets = budgets_of_cells(cells, seen.reach, seen.budget)
    for number, (cell, budget) in enumerate(zip(cells, budgets, strict=True)):
        own = fleet_of_cell(number, cell, fleet)
        state = replace(
            initial_state(own, DySTop()),
            t=control.t,
            staleness=np.where(cell.own, control.staleness[cell.nodes], 0),
            queue=control.queue[cell.nodes],
            version=control.version[cell.nodes],
        )
        state = with_border(state, cell, control.staleness, control.version)
        assert np.array_equal(state.staleness, control.staleness[cell.nodes])
        view = build_view(own, state, observation_of_cell(cell, seen, budget))
        plans.append(decide(DySTop(neighbours=4), state, view)[0])  # checks the plan, too
    return cells, plans


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rounds())
def test_budgets_hold_across_cells_and_no_link_is_beyond_reach(case):
    cell_of, seen, fleet, _ = case
    cells, plans = decisions(case)
    plan = join_plans(cells, plans)
    assert (seen.reach.find(plan.links.dst, plan.links.src) >= 0).all()
    assert np.isin(plan.links.dst, plan.active).all()
    assert len(np.unique(plan.active)) == len(plan.active)
    used = bandwidth_use(plan.links.dst, plan.links.src, fleet.workers)
    assert (used <= seen.budget).all()
    for number, (cell, part) in enumerate(zip(cells, plans, strict=True)):
        assert cell.own[part.active].all()
        assert (cell_of[cell.members] == number).all()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(rounds())
def test_cells_are_what_a_plain_search_finds(case):
    cell_of, seen, _, _ = case
    reach, cells = seen.reach, cut(seen.reach, cell_of)
    pairs = set(zip(reach.dst.tolist(), reach.src.tolist(), strict=True))
    budgets = list(budgets_of_cells(cells, reach, seen.budget))
    given_away = np.zeros(reach.n)
    for number, (cell, budget) in enumerate(zip(cells, budgets, strict=True)):
        members = [i for i in range(reach.n) if cell_of[i] == number]
        into = {(i, j) for i, j in pairs if i in members}
        border = sorted({j for _, j in into} - set(members))
        assert cell.members.tolist() == members
        assert cell.border.tolist() == border
        inner = cell.nodes[cell.reach.dst].tolist(), cell.nodes[cell.reach.src].tolist()
        assert set(zip(*inner, strict=True)) == into
        assert np.array_equal(reach.dst[cell.edge], inner[0])
        assert np.array_equal(reach.src[cell.edge], inner[1])
        for j, got in zip(border, budget[~cell.own], strict=True):
            asks = sum(src == j for _, src in into)
            everybody = sum(src == j for _, src in pairs)
            assert got == (np.floor(seen.budget[j] * asks / everybody) if
                           np.isfinite(seen.budget[j]) else np.inf)  # fmt: skip
            given_away[j] += got if np.isfinite(got) else 0.0
    for cell, budget in zip(cells, budgets, strict=True):
        kept = seen.budget[cell.members] - given_away[cell.members]
        assert np.array_equal(budget[cell.own], kept)


def test_four_workers_in_a_row_worked_by_hand():
    """Workers 0 to 3, ten metres apart; each reaches the next. Two cells: 0, 1 and 2, 3."""
    position = np.array([[0.0, 0], [10, 0], [20, 0], [30, 0]])
    reach = graph_of(4, ints([0, 1, 1, 2, 2, 3]), ints([1, 0, 2, 1, 3, 2]))
    cell_of = cells_of(position, 2)
    assert cell_of.tolist() == [0, 0, 1, 1]
    left, right = cut(reach, cell_of)
    assert (left.members.tolist(), left.border.tolist()) == ([0, 1], [2])
    assert (right.members.tolist(), right.border.tolist()) == ([2, 3], [1])
    # Links into 0 and 1, in the ids 0, 1, 2 of the left cell: 0 <- 1, 1 <- 0, 1 <- 2.
    assert (left.reach.dst.tolist(), left.reach.src.tolist()) == ([0, 1, 1], [1, 0, 2])
    # Links into 2 and 3, where 1, 2, 3 have the ids 0, 1, 2: 2 <- 1, 2 <- 3, 3 <- 2.
    assert (right.reach.dst.tolist(), right.reach.src.tolist()) == ([1, 1, 2], [0, 2, 1])
    # Worker 1 has 5 models. Of the two workers in reach of it, one is in the other cell:
    # half of 5, rounded down, is 2, and 3 stay. Worker 2 has 4: 2 and 2.
    first, second = budgets_of_cells((left, right), reach, np.array([6.0, 5.0, 4.0, np.inf]))
    assert first.tolist() == [6.0, 3.0, 2.0]
    assert second.tolist() == [2.0, 2.0, np.inf]


def test_a_single_cell_is_the_whole_fleet():
    reach = graph_of(3, ints([0, 1, 2]), ints([1, 2, 0]))
    (cell,) = cut(reach, np.zeros(3, np.int64))
    assert cell.own.all()
    assert same((cell.reach, cell.edge), (reach, np.arange(3)))
    (budget,) = budgets_of_cells((cell,), reach, np.array([1.0, np.nan, np.inf]))
    assert same(budget, np.array([1.0, np.nan, np.inf]))


def test_cells_draw_different_numbers():
    reach = graph_of(4, ints([0, 1]), ints([1, 0]))
    cells = cut(reach, ints([0, 0, 1, 2]))
    counts = np.ones((4, 2), np.int64)
    fleet = Fleet(counts.sum(axis=1), counts, 1, 10, 3, 5)
    seeds = [fleet_of_cell(k, cell, fleet).seed for k, cell in enumerate(cells)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(rounds())
def test_every_cell_sees_its_part_of_the_outcome(case):
    cells, plans = decisions(case)
    plan = join_plans(cells, plans)
    rng = np.random.default_rng(3)
    active, links = len(plan.active), len(plan.links)
    outcome = Outcome(
        duration_s=2.5,
        comm_s=rng.random(active),
        link_s=rng.random(links),
        link_bytes=rng.integers(1, 9, links),
        lost=rng.random(links) < 0.5,
        loss=rng.random(active),
        samples=3,
        failed=rng.random(active) < 0.5,
    )
    parts = list(outcomes_of_cells(plans, outcome))
    for name in ("comm_s", "link_s", "link_bytes", "lost", "loss", "failed"):
        together = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(together, getattr(outcome, name))
    assert {part.duration_s for part in parts} == {outcome.duration_s}
