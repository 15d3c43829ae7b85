"""The last round on the map: who is where, who was active, who pulled from whom, how stale."""

from typing import Any

from dystop.dashboard.library import Card
from dystop.dashboard.values import known, whole
from dystop.dashboard.workers import Workers
from dystop.units import number, plural

MOST_DOTS, MOST_LINKS = 3000, 2500
Pair = tuple[float, float]


def pair(value: object) -> Pair | None:
    """Two numbers in metres, or nothing."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    x, y = map(known, value)
    return None if x is None or y is None else (round(x, 2), round(y, 2))


def scene(card: Card, crew: Workers) -> dict[str, Any]:
    """The map; `missing` says why there is none, `notes` what it does not show."""
    moved, fleet = crew.history.positions, card.fleet or {}
    at = moved if isinstance(moved, list) else fleet.get("positions")
    if not isinstance(at, list) or not at:
        return {"missing": "No positions were recorded, so there is no map to draw."}
    count = min(crew.count or len(at), len(at))
    step = max(1, -(-count // MOST_DOTS))
    dots = [_dot(at, crew, i) for i in range(0, count, step)]
    links, pairs = _links(at, crew)
    last = crew.history.last
    return {
        "missing": "",
        "dots": [dot for dot in dots if dot is not None],
        "servers": [found for value in at[count : count + 1] if (found := pair(value))],
        "links": links,
        "area_m": pair(fleet.get("area_m")),
        "range_m": known(fleet.get("range_m")),
        "round": last.round if last else None,
        "active": None if crew.active is None else len(crew.active),
        "told": crew.staleness is not None,
        "notes": _notes(crew, pairs, step),
    }


def _dot(at: list[object], crew: Workers, worker: int) -> list[Any] | None:
    """Place, whether it was active in the last round, number, and its row of the table."""
    here = pair(at[worker])
    if here is None:
        return None
    return [*here, int(worker in (crew.active or ())), worker, *crew.row(worker)]


def _links(at: list[object], crew: Workers) -> tuple[list[list[float]], int | None]:
    """Links of the last round as x, y of sender and of receiver; and how many were recorded."""
    raw = crew.history.last.link_pairs if crew.history.last else None
    if not isinstance(raw, list):
        return [], None
    step = max(1, -(-len(raw) // MOST_LINKS))
    found = [_link(at, value) for value in raw[::step]]
    return [link for link in found if link is not None], len(raw)


def _link(at: list[object], value: object) -> list[float] | None:
    """`value` is (to, from), as everywhere."""
    ends = [whole(v) for v in value] if isinstance(value, list) and len(value) == 2 else []
    places = [pair(at[i]) for i in reversed(ends) if i is not None and i < len(at)]
    kept = [place for place in places if place is not None]
    return [*kept[0], *kept[1]] if len(kept) == 2 else None


def _notes(crew: Workers, pairs: int | None, step: int) -> list[str]:
    notes = [crew.doubt] if crew.doubt else []
    if crew.history.last is not None and pairs is None:
        notes.append("The links of the last round were not recorded.")
    if pairs is not None and pairs > MOST_LINKS:
        notes.append(f"{number(pairs)} links, thinned evenly to at most {number(MOST_LINKS)}.")
    if step > 1:
        notes.append(f"One of {plural(step, 'worker')} is drawn.")
    return notes
