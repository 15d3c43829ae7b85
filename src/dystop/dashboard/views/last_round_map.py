"""The last round on a map: positions, active workers, links and staleness."""

from typing import Any

from dystop.dashboard.run_folders.files import as_count, as_number
from dystop.dashboard.run_folders.library import RunFiles
from dystop.dashboard.views.workers import Workers
from dystop.units import number, plural

MAX_DOTS, MAX_LINKS = 3000, 2500
Coordinates = tuple[float, float]


def coordinates(value: object) -> Coordinates | None:
    """Return two numbers in metres, None where the value is not a position."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    x, y = map(as_number, value)
    return None if x is None or y is None else (round(x, 2), round(y, 2))


def last_round_map(run: RunFiles, workers: Workers) -> dict[str, Any]:
    """Return the map; `missing` says why there is none, `notes` what it leaves out."""
    moved, fleet = workers.history.positions, run.fleet or {}
    at = moved if isinstance(moved, list) else fleet.get("positions")
    if not isinstance(at, list) or not at:
        return {"missing": "No positions were recorded, so there is no map to draw."}
    count = min(workers.count or len(at), len(at))
    step = max(1, -(-count // MAX_DOTS))
    dots = [_dot(at, workers, i) for i in range(0, count, step)]
    links, pairs = _links(at, workers)
    last = workers.history.last
    return {
        "missing": "",
        "dots": [dot for dot in dots if dot is not None],
        "servers": [found for value in at[count : count + 1] if (found := coordinates(value))],
        "links": links,
        "area_m": coordinates(fleet.get("area_m")),
        "range_m": as_number(fleet.get("range_m")),
        "round": last.round if last else None,
        "active": None if workers.active is None else len(workers.active),
        "staleness_known": workers.staleness is not None,
        "notes": _notes(workers, pairs, step),
    }


def _dot(at: list[object], workers: Workers, worker: int) -> list[Any] | None:
    """Return position, whether active in the last round, id, and the row of the table."""
    position = coordinates(at[worker])
    if position is None:
        return None
    return [*position, int(worker in (workers.active or ())), worker, *workers.row(worker)]


def _links(at: list[object], workers: Workers) -> tuple[list[list[float]], int | None]:
    """Return links as x, y of sender and receiver, and the number of recorded links."""
    raw = workers.history.last.get("link_pairs") if workers.history.last else None
    if not isinstance(raw, list):
        return [], None
    step = max(1, -(-len(raw) // MAX_LINKS))
    found = [_link(at, value) for value in raw[::step]]
    return [link for link in found if link is not None], len(raw)


def _link(at: list[object], value: object) -> list[float] | None:
    """Return the ends of a recorded link, which is (receiver, sender)."""
    ends = [as_count(v) for v in value] if isinstance(value, list) and len(value) == 2 else []
    ends_at = [coordinates(at[i]) for i in reversed(ends) if i is not None and i < len(at)]
    kept = [place for place in ends_at if place is not None]
    return [*kept[0], *kept[1]] if len(kept) == 2 else None


def _notes(workers: Workers, pairs: int | None, step: int) -> list[str]:
    notes = [workers.note] if workers.note else []
    if workers.history.last is not None and pairs is None:
        notes.append("The links of the last round were not recorded.")
    if pairs is not None and pairs > MAX_LINKS:
        notes.append(
            f"At most {number(MAX_LINKS)} of {number(pairs)} links are drawn, evenly chosen."
        )
    if step > 1:
        notes.append(f"One of {plural(step, 'worker')} is drawn.")
    return notes
