"""All runs as the page shows them: one line each, comparisons together."""

from typing import Any

from dystop.dashboard.discovery import Discovery, Place
from dystop.dashboard.library import Library
from dystop.dashboard.summary import age_s, block, data_words, is_real, mechanism, progress
from dystop.dashboard.values import known, text
from dystop.units import number, percent, seconds


def index_view(library: Library) -> dict[str, Any]:
    """The listing: groups in the order of their last change, the newest first."""
    shelf = library.shelf()
    rows = [_row(library, place) for place in shelf.places.values()]
    groups = [_group(shelf, name, rows) for name in shelf.groups]
    single = [row for row in rows if not row["group"]]
    groups += [{"name": "", "rows": [row], "age_s": row["age_s"]} for row in single]
    groups.sort(key=lambda g: (g["age_s"] is None, g["age_s"] or 0.0, g["name"]))
    return {"title": library.root.resolve().name, "groups": groups, "left_out": shelf.left_out}


def _group(shelf: Discovery, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    planned = shelf.groups[name].planned
    here = [row for row in rows if row["group"] == name]
    order = {row["folder"]: k for k, row in enumerate(planned)}
    here.sort(key=lambda row: order.get(row["name"], len(order)))
    begun = {row["name"] for row in here}
    waiting = [_waiting(row) for row in planned if row["folder"] not in begun]
    ages = [row["age_s"] for row in here if row["age_s"] is not None]
    done = sum(row["status"] == "finished" for row in here)
    return {
        "name": name,
        "rows": here + waiting,
        "age_s": min(ages, default=None),
        "summary": f"{done} of {len(here) + len(waiting)} finished",
    }


def _waiting(row: dict[str, Any]) -> dict[str, Any]:
    """A run of a comparison that has not begun."""
    told = {"name": text(row.get("mechanism")), "provenance": text(row.get("provenance"))}
    return {"key": None, "name": text(row["folder"]), "status": "waiting", "mechanism": told}


def _row(library: Library, place: Place) -> dict[str, Any]:
    card, tail = library.card(place), library.tail(place)
    last, scored = tail.last, tail.scored
    limit = known(block(card, "stop").get("rounds"))
    return {
        "key": place.key,
        "name": place.name,
        "group": place.group,
        "status": card.status,
        "mechanism": mechanism(card),
        "data": data_words(card),
        "real": is_real(card),
        "round": number(last.round if last else None),
        "rounds": number(limit),
        "clock": seconds(known(last.clock_s) if last else None),
        "accuracy": percent(known(scored.accuracy) if scored else None),
        "progress": progress(card, last),
        "age_s": age_s(card),
    }
