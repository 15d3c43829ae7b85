"""Cells: many coordinators, each for the workers of one region (ADR 0042).

A worker belongs to one cell, by its position. The coordinator of a cell runs the mechanism on a
view of its members and of its border: workers of other cells that are in reach of a member.
Members may be activated. A worker of the border may only be pulled from. All cells decide in each
round, and their plans together are one plan. Ids inside a cell number its members and its border by
ascending id.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dystop.plan import Plan, join_links
from dystop.rng import bits
from dystop.sparse import Bools, Floats, Graph, Ints, group, ints
from dystop.types import ControlState, Fleet, Observation, Outcome, View


def cells_of(position: Floats, size: int) -> Ints:
    """Return the cell of every worker, [N]: at most `size` workers that are near each other.

    A region with more workers is halved across the longer side of the box around them: the half
    with smaller coordinates is numbered first, and has one worker more if their number is odd. Ties
    go to the lower id.

    >>> cells_of(np.array([[0.0, 0], [9, 0], [1, 0], [8, 0], [2, 0]]), 3).tolist()
    [0, 1, 0, 1, 0]
    """
    if size < 1:
        raise ValueError(f"size = {size}: a cell has at least one worker")
    cell, regions, count = np.zeros(len(position), np.int64), [np.arange(len(position))], 0
    while regions:
        here = regions.pop()
        if len(here) <= size:
            cell[here], count = count, count + 1
            continue
        where = position[here]
        along = where[:, int(np.argmax(np.ptp(where, axis=0)))]
        order = here[np.lexsort((here, along))]
        half = -(-len(order) // 2)
        regions += [order[half:], order[:half]]  # the last one is taken first
    return cell


@dataclass(frozen=True)
class Cell:
    """The workers that one coordinator knows, and the links on which its members may receive."""

    nodes: Ints  # members and border, ascending, [n]
    own: Bools  # which of them are members, [n]
    reach: Graph  # links into members, in the ids of the cell
    edge: Ints  # the number of each of these links in the whole graph
    asks: Ints  # members that are in reach of each worker of the border, [border]

    @property
    def members(self) -> Ints:
        """The workers of the cell, ascending."""
        return self.nodes[self.own]

    @property
    def border(self) -> Ints:
        """Workers of other cells that members may pull from, ascending."""
        return self.nodes[~self.own]


def cut(reach: Graph, cell_of: Ints) -> tuple[Cell, ...]:
    """Return the cells of a reach graph between workers, in the order of their numbers."""
    cells = int(cell_of.max(initial=-1)) + 1
    members = group(cells, cell_of, np.arange(len(cell_of)), ascending=True)
    rows = zip(members.indptr[:-1], members.indptr[1:], strict=True)
    return tuple(_cell(reach, ints(members.value[lo:hi])) for lo, hi in rows)


def _cell(reach: Graph, members: Ints) -> Cell:
    bounds, found = reach.edges_into(members)
    edge = np.arange(found.start, found.stop) if isinstance(found, slice) else found
    src = reach.src[edge]
    seen = np.unique(src)
    nodes = np.union1d(members, seen)
    own = np.zeros(len(nodes), bool)
    own[np.searchsorted(nodes, members)] = True
    degree = np.zeros(len(nodes), np.int64)
    degree[own] = np.diff(bounds)
    local_src = np.searchsorted(nodes, src)
    inner = Graph(
        np.concatenate([[0], np.cumsum(degree)]),
        np.repeat(np.arange(len(nodes)), degree),
        local_src,
    )
    asks = np.bincount(local_src, minlength=len(nodes))[~own]
    return Cell(nodes, own, inner, edge, asks)


def budgets_of_cells(cells: Sequence[Cell], reach: Graph, budget: Floats) -> Iterator[Floats]:
    """Yield the bandwidth budget of every worker that a cell knows, [n], cell by cell.

    The budget of a worker at a border is divided before anybody decides: each other cell gets the
    share of its members among all workers in reach of that worker, rounded down, and the worker's
    own cell keeps the rest. So all cells together never exceed a budget, whatever they decide.

    Args:
        cells: All cells of a fleet.
        reach: The graph that they were cut from.
        budget: Models each worker may send and receive in this round, [N].
    """
    limited, receivers = np.isfinite(budget), np.bincount(reach.src, minlength=reach.n)
    granted = []
    kept = budget.copy()
    for cell in cells:
        at = cell.border
        share = np.where(limited[at], np.floor(budget[at] * cell.asks / receivers[at]), budget[at])
        kept[at] -= np.where(limited[at], share, 0.0)
        granted.append(share)
    for cell, share in zip(cells, granted, strict=True):
        out = kept[cell.nodes]
        out[~cell.own] = share
        yield out


def fleet_of_cell(number: int, cell: Cell, fleet: Fleet) -> Fleet:
    """Return what a coordinator knows about the data of its members and its border.

    Every cell but the first draws random numbers of its own.
    """
    seed = fleet.seed if number == 0 else int(bits(fleet.seed, "cell", number)) >> 1
    return replace(
        fleet,
        data_size=fleet.data_size[cell.nodes],
        label_counts=fleet.label_counts[cell.nodes],
        seed=seed,
    )


def observation_of_cell(cell: Cell, seen: Observation | View, budget: Floats) -> Observation:
    """Return what a coordinator observes; it cannot activate the border, as if that were absent.

    Args:
        cell: Its cell.
        seen: What can be observed of all workers.
        budget: Budgets of the workers that it knows, [n]; see `budgets_of_cells`.
    """
    return Observation(
        alive=seen.alive[cell.nodes] & cell.own,
        reach=cell.reach,
        distance_m=seen.distance_m[cell.edge],
        link_s=seen.link_s[cell.edge],
        step_s=seen.step_s[cell.nodes],
        remaining_s=seen.remaining_s[cell.nodes],
        budget=budget,
    )


def with_border(control: ControlState, cell: Cell, staleness: Ints, version: Ints) -> ControlState:
    """Return the state of a coordinator after the other cells have told it about its border.

    Args:
        control: Its state.
        cell: Its cell.
        staleness: Of all workers, [N].
        version: Of all workers, [N].
    """
    own_staleness, own_version = control.staleness.copy(), control.version.copy()
    own_staleness[~cell.own], own_version[~cell.own] = staleness[cell.border], version[cell.border]
    return replace(control, staleness=own_staleness, version=own_version)


def join_plans(cells: Sequence[Cell], plans: Sequence[Plan]) -> Plan:
    """Return the plans of all cells as one plan in the ids of the whole fleet.

    It says who is active and who pulls from whom. The mixing rows stay with the cells.
    """
    parts = list(zip(cells, plans, strict=True))
    active = np.concatenate([cell.nodes[plan.active] for cell, plan in parts])
    together = join_links([
        replace(p.links, dst=cell.nodes[p.links.dst], src=cell.nodes[p.links.src])
        for cell, p in parts
    ])  # fmt: skip
    steps = [plan.steps for plan in plans if plan.steps is not None]
    notes = {
        name: float(np.mean([plan.notes[name] for plan in plans if name in plan.notes]))
        for name in dict.fromkeys(name for plan in plans for name in plan.notes)
    }
    return Plan(
        active,
        together,
        steps=np.concatenate(steps) if steps else None,
        synchronous=any(plan.synchronous for plan in plans),
        join=any(plan.join for plan in plans),
        notes=notes,
    )


def outcomes_of_cells(plans: Sequence[Plan], outcome: Outcome) -> Iterator[Outcome]:
    """Yield the part of a round's outcome that each cell sees, in its own ids.

    The duration is that of the common round. Samples and idle time are not divided.
    """
    active = link = 0
    for plan in plans:
        who = slice(active, active := active + len(plan.active))
        pulled = slice(link, link := link + len(plan.links))
        yield Outcome(
            duration_s=outcome.duration_s,
            comm_s=outcome.comm_s[who],
            link_s=outcome.link_s[pulled],
            link_bytes=outcome.link_bytes[pulled],
            lost=outcome.lost[pulled],
            loss=outcome.loss[who],
            samples=0,
            active=plan.active,
            dst=plan.links.dst,
            src=plan.links.src,
            failed=outcome.failed[who],
        )
