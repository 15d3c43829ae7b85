"""What a ledger shows about its rounds: their plans, and the steps in which the state changed.

The audit reads these facts (`dystop.testbed.audit`), and the archive keeps them of rounds whose
rows are gone (`ledger.archive`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dystop.testbed.ledger.tables import read_blob
from dystop.types import ControlState

Pair = tuple[int, int]  # (dst, src): dst receives from src
Rows = Callable[[str], Iterable[Any]]  # rows of a table of the ledger, by key


@dataclass(frozen=True)
class Planned:
    """A plan as it was committed."""

    round: int
    epoch: int
    active: frozenset[int]
    ordered: frozenset[
        int
    ]  # nodes with an order: active ones, and those that only aggregate or receive


@dataclass(frozen=True)
class StateFacts:
    """Staleness, queues and pull counts as the coordinator stored them after a step."""

    staleness: tuple[int, ...]
    queue: tuple[float, ...]
    pulls: Mapping[Pair, int]


@dataclass(frozen=True)
class Closed:
    """The closing of a round."""

    round: int
    done: frozenset[int]  # ordered nodes that had confirmed
    pulled: tuple[Pair, ...]  # pulls (not pushes) that had arrived
    present: frozenset[int]  # workers that took part when the round was planned
    state: StateFacts | None = None


@dataclass(frozen=True)
class LateReport:
    """A report that arrived after its round was closed."""

    round: int
    node: int
    pulled: tuple[Pair, ...]
    state: StateFacts | None = None


Step = Closed | LateReport
_Ordered = tuple[tuple[int, int, int], Step]


@dataclass(frozen=True)
class RoundFacts:
    """Plans by round, and steps in the order in which they took effect."""

    planned: Sequence[Planned]
    steps: Sequence[Step]


def round_facts(rows: Rows) -> RoundFacts:
    """Return what the rows of a ledger show; `rows` is `Ledger.rows` or a part of it."""
    rounds = [(line, read_blob(line.plan)) for line in rows("rounds")]
    orders = list(rows("orders"))
    found = [*_closings(rows, rounds, orders), *_late_reports(rows, orders)]
    steps = [step for _, step in sorted(found, key=lambda item: item[0])]
    return RoundFacts(_planned(rounds, orders), steps)


def _planned(rounds: Sequence[tuple[Any, Any]], orders: Sequence[Any]) -> list[Planned]:
    ordered: dict[int, set[int]] = {}
    for order in orders:
        ordered.setdefault(order.round, set()).add(order.node)
    return [
        Planned(
            round=line.round,
            epoch=line.epoch,
            active=frozenset(kept["plan"].active.tolist()),
            ordered=frozenset(ordered.get(line.round, ())),
        )
        for line, kept in rounds
    ]


def _closings(
    rows: Rows, rounds: Sequence[tuple[Any, Any]], orders: Sequence[Any]
) -> Iterator[_Ordered]:
    done: dict[int, set[int]] = {}
    for order in orders:
        if order.outcome == "DONE":
            done.setdefault(order.round, set()).add(order.node)
    reports = {
        (r.round, r.node): json.loads(r.json)
        for r in rows("reports")
        if r.kind == "mixed" and not r.late
    }
    for line, kept in rounds:
        if line.closed_s is None:
            continue
        confirmed = frozenset(done.get(line.round, ()))
        reports_of = {i: reports[line.round, i] for i in confirmed if (line.round, i) in reports}
        step = Closed(
            round=line.round,
            done=confirmed,
            pulled=tuple(_pulled(kept["plan"].links, reports_of)),
            present=frozenset(kept["view"].alive.nonzero()[0].tolist()),
            state=_state_facts(line.books),
        )
        yield (line.closed_seq, 1, line.round), step


def _pulled(links: Any, reports_of: Mapping[int, Any]) -> Iterator[Pair]:
    """Yield the pulls that arrived; a background pull counts unless it is known to have failed."""
    for k, (dst, src) in enumerate(zip(links.dst.tolist(), links.src.tolist(), strict=True)):
        if dst not in reports_of or links.pushed[k]:
            continue
        where, report = (int(links.stage[k]), src), reports_of[dst]
        used = {(u["stage"], u["node"]) for u in report.get("used", ())}
        refused = {(r["stage"], r["node"]) for r in report.get("rejected", ())}
        if where in used or (links.background[k] and where not in refused):
            yield dst, src


def _late_reports(rows: Rows, orders: Sequence[Any]) -> Iterator[_Ordered]:
    pulls = {(o.round, o.node): {tuple(p) for p in json.loads(o.pulls)} for o in orders}
    books = {line.seq: line.books for line in rows("lates")}
    for r in rows("reports"):
        if r.kind != "mixed" or not r.late:
            continue
        used = json.loads(r.json).get("used", ())
        ordered = pulls[r.round, r.node]
        pairs = [(r.node, u["node"]) for u in used if (u["stage"], u["node"]) in ordered]
        yield (
            (r.seq, 0, r.round),
            LateReport(r.round, r.node, tuple(pairs), _state_facts(books.get(r.seq))),
        )


def _state_facts(blob: bytes | None) -> StateFacts | None:
    if blob is None:
        return None
    books: ControlState = read_blob(blob)
    pulls, n = books.pulls, books.pulls.n
    return StateFacts(
        staleness=tuple(books.staleness.tolist()),
        queue=tuple(books.queue.tolist()),
        pulls={
            divmod(k, n): c for k, c in zip(pulls.keys.tolist(), pulls.counts.tolist(), strict=True)
        },
    )
