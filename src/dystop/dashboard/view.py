"""A run as the page shows it: plain values, ready for JSON; what a page has is left out."""

from collections.abc import Sequence
from typing import Any

from dystop.dashboard.discovery import Place
from dystop.dashboard.downsample import Line
from dystop.dashboard.history import ROUNDS, TESTS, History
from dystop.dashboard.library import Card
from dystop.dashboard.map_view import scene
from dystop.dashboard.record_log import Follower
from dystop.dashboard.summary import (
    age_s,
    block,
    ending,
    facts,
    is_real,
    mechanism,
    notices,
    progress,
    tiles,
)
from dystop.dashboard.values import known
from dystop.dashboard.workers import workers_state, workers_view


def cursor(follower: Follower, card: Card) -> str:
    """What a page has; given back, it is told only what is new."""
    history = follower.history
    points = f"{len(history.rounds.points)}.{len(history.tests.points)}"
    round_ = history.last.round if history.last else 0
    return f"{follower.epoch}.{points}.{round_}.{card.status}"


def _has(follower: Follower, since: str) -> tuple[int, int]:
    """Points of both lines that a page has and may keep; the last ones may still have grown."""
    parts = since.split(".")
    if len(parts) != 5 or parts[0] != follower.epoch:
        return 0, 0
    counts = [int(p) if p.isascii() and p.isdigit() and len(p) < 9 else 0 for p in parts[1:3]]
    return max(0, counts[0] - 1), max(0, counts[1] - 1)


def curve(line: Line, columns: Sequence[str], start: int) -> dict[str, Any]:
    """Points of a line from `start` on."""
    start = min(start, len(line.points))
    rows = [p.cells() for p in line.points[start:]]
    return {"columns": list(columns), "from": start, "rows": rows, "group": line.group}


def run_view(place: Place, card: Card, follower: Follower, since: str = "") -> dict[str, Any]:
    """All that the page of a run needs; what the page has already is left out.

    Args:
        place: The run.
        card: What it says about itself.
        follower: Its record log, as far as it was read.
        since: The `cursor` of the view that the page shows; empty for a new page.
    """
    history, now = follower.history, cursor(follower, card)
    rounds, tests = _has(follower, since)
    out: dict[str, Any] = {
        "key": place.key,
        "name": place.name,
        "group": place.group,
        "status": card.status,
        "ending": ending(card),
        "age_s": age_s(card),
        "real": is_real(card),
        "mechanism": mechanism(card),
        "facts": facts(card),
        "tiles": tiles(card, history),
        "progress": progress(card, history.last),
        "bound": known(block(card, "mechanism").get("staleness_bound")),
        "notices": notices(card, follower),
        "read": round(follower.offset / follower.size, 3) if follower.is_behind else 1,
        "cursor": now,
        "rounds": curve(history.rounds, ROUNDS, rounds),
        "tests": curve(history.tests, TESTS, tests),
    }
    if since != now:
        crew = workers_state(card, history)
        out |= {"scene": scene(card, crew), "crew": workers_view(crew)}
        out["histogram"] = _histogram(history)
    return out


def _histogram(history: History) -> list[int]:
    """Workers with staleness 0, 1, 2, ... when the last round opened."""
    found = history.last.staleness_histogram if history.last else None
    counts = [known(n) for n in found] if isinstance(found, list) else []
    return [] if None in counts else [int(n) for n in counts if n is not None]
