"""What a run is and where it stands, in words and numbers. What is not recorded says so."""

import time
from typing import Any

from dystop.dashboard.history import History
from dystop.dashboard.library import Card
from dystop.dashboard.record_log import Follower
from dystop.dashboard.values import known, text
from dystop.dashboard.workers import workers_of
from dystop.record import RoundRecord
from dystop.types import FAITHFUL
from dystop.units import NOTHING, data, number, percent, plural, seconds

UNKNOWN = "not recorded"

Tile = tuple[str, str, str]  # value, what it is, more about it


def block(card: Card, name: str) -> dict[str, Any]:
    """A block of the configuration; empty where there is none."""
    found = (card.config or {}).get(name)
    return found if isinstance(found, dict) else {}


def mechanism(card: Card) -> dict[str, Any]:
    """The mechanism with its provenance; `doubtful` where it could not be followed exactly."""
    told = (card.info or {}).get("mechanism")
    told = told if isinstance(told, dict) else {}
    provenance = text(told.get("provenance"))
    return {
        "name": text(told.get("name") or block(card, "mechanism").get("name"), UNKNOWN),
        "mode": text(told.get("mode")),
        "provenance": provenance,
        "doubtful": provenance not in FAITHFUL | {"", "reference"},
        "summary": text(told.get("summary")),
    }


def is_real(card: Card) -> bool:
    """Whether the seconds of a run really passed."""
    return (card.info or {}).get("kind") == "testbed"


def data_words(card: Card) -> str:
    """Data set and skew."""
    told = block(card, "data")
    phi = known(told.get("phi"))
    skew = f", phi {phi:g}" if phi is not None else ""
    return text(told.get("name"), UNKNOWN) + skew


def facts(card: Card) -> list[tuple[str, str]]:
    """What a run is, in short lines."""
    info, bound = card.info or {}, known(block(card, "mechanism").get("staleness_bound"))
    where = "testbed: real processes, measured seconds" if is_real(card) else "simulator"
    rows = [
        ("runs on", where),
        ("timing law", text(info.get("timing"), UNKNOWN)),
        ("publish rule", text(info.get("publish"), UNKNOWN)),
        ("data", data_words(card)),
        ("model", _model(card)),
        ("seed", text(info.get("seed"), UNKNOWN)),
    ]
    return [*rows, ("staleness bound", number(bound))] if bound is not None else rows


def _model(card: Card) -> str:
    size = known((card.fleet or {}).get("model_bytes"))
    return text(block(card, "model").get("name"), UNKNOWN) + (f", {data(size)}" if size else "")


def tiles(card: Card, history: History) -> list[Tile]:
    """The numbers of the last round."""
    last, scored = history.last, history.scored
    unit = "measured time" if is_real(card) else "simulated time"
    if last is None:
        return [(NOTHING, "round", "no round has closed yet")]
    return [
        (number(last.round), "round", _of(block(card, "stop").get("rounds"), number)),
        (f"{number(known(last.clock_s))} s", unit, _time(last, block(card, "stop"))),
        _accuracy(scored),
        (data(known(last.wire_bytes_total)), "on the wire", _links(last)),
        (_staleness(last), "staleness", _bound(card)),
        (number(known(last.loss)), "training loss", _duration(last)),
        (f"{number(known(last.active))} / {number(known(last.alive))}", "active / alive",
         f"of {plural(n, 'worker')}" if (n := workers_of(card, history)) else ""),
    ]  # fmt: skip


def _of(limit: object, shown: Any) -> str:
    found = known(limit)
    return f"of at most {shown(found)}" if found else ""


def _time(last: RoundRecord, stop: dict[str, Any]) -> str:
    """Hours, once the seconds are many, and the limit."""
    clock_s = known(last.clock_s) or 0.0
    hours = f"{number(clock_s / 3600)} h" if clock_s >= 10_000 else ""
    return ", ".join(filter(None, (hours, _of(stop.get("seconds"), seconds))))


def _accuracy(scored: RoundRecord | None) -> Tile:
    if scored is None:
        return NOTHING, "test accuracy", "not evaluated yet"
    std, shared = known(scored.accuracy_std), known(scored.accuracy_global)
    spread = f" ± {100 * std:.1f}" if std is not None else ""
    value = f"{100 * (known(scored.accuracy) or 0.0):.1f}{spread} %"
    more = f", global {percent(shared)}" if shared is not None else ""
    return value, "test accuracy", f"own models{more}, round {number(scored.round)}"


def _links(last: RoundRecord) -> str:
    lost = f", {number(known(last.lost))} lost" if last.lost else ""
    links = plural(int(known(last.links) or 0), "link")
    return f"{links} in the last round{lost}"


def _staleness(last: RoundRecord) -> str:
    return f"{number(known(last.staleness_mean))} / {number(known(last.staleness_max))}"


def _bound(card: Card) -> str:
    bound = known(block(card, "mechanism").get("staleness_bound"))
    return "mean / largest" + ("" if bound is None else f", bound {number(bound)}")


def _duration(last: RoundRecord) -> str:
    return f"the round took {seconds(known(last.duration_s))}"


def progress(card: Card, last: RoundRecord | None) -> float | None:
    """How much of its limits a run has used, from 0 to 1; None where it has none."""
    if last is None:
        return None
    stop = block(card, "stop")
    limits = [(last.round, stop.get("rounds")), (last.clock_s, stop.get("seconds"))]
    shares = [done / limit for done, raw in limits if (limit := known(raw))]
    return min(1.0, max(shares)) if shares else None


def notices(card: Card, follower: Follower) -> list[str]:
    """What a reader must know before believing the numbers."""
    history, out = follower.history, []
    files = [("run.json", card.info), ("config.toml", card.config), ("fleet.json", card.fleet)]
    if unread := [name for name, found in files if found is None]:
        out.append(f"{' and '.join(unread)} cannot be read; what it would tell is missing here.")
    if history.damaged:
        out.append(f"{plural(history.damaged, 'line')} of records.jsonl could not be read.")
    if follower.is_stuck:
        out.append("records.jsonl has a line without end; nothing after it can be shown.")
    return [*out, *_doubts(card, history)]


def _doubts(card: Card, history: History) -> list[str]:
    out = []
    told = mechanism(card)
    if "reconstruction" in told["provenance"]:
        out.append(
            f"{told['name']} is a reconstruction: the original could not be followed in every "
            "detail, so these numbers do not reproduce the published ones."
        )
    if history.scored is not None and (lost := known(history.scored.diverged)):
        models = f"{plural(int(lost), 'model')} {'has' if lost == 1 else 'have'}"
        out.append(f"{models} diverged: no finite loss is left.")
    if size := known(block(card, "model").get("wire_bytes")):
        out.append(
            f"A stand-in: clock and traffic are those of a model of {data(size)}, accuracy and "
            "loss are those of the model that was trained in its place (model.wire_bytes)."
        )
    return out


def ending(card: Card) -> str:
    """Why a run is not going on, and what to do about it."""
    reason = text((card.info or {}).get("stop_reason"))
    if card.status == "interrupted":
        way = "dystop testbed --resume RUN" if is_real(card) else "dystop resume RUN"
        return f"Interrupted; go on with: {way}"
    if card.status == "failed":
        return f"Failed: {reason or 'no reason was recorded'}"
    return f"Finished: {reason}" if card.status == "finished" and reason else ""


def age_s(card: Card) -> float | None:
    """Seconds since the last round was written."""
    if card.changed_s is None:
        return None
    return round(max(0.0, time.time() - card.changed_s), 1)
