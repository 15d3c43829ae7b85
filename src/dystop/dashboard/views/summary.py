"""What a run is and how far it got: facts, headline numbers, warnings."""

import time
from typing import Any

from dystop.dashboard.run_folders.files import as_count, as_number, as_text
from dystop.dashboard.run_folders.history import History
from dystop.dashboard.run_folders.library import RunFiles
from dystop.dashboard.run_folders.log_reader import LogFollower
from dystop.dashboard.views.workers import worker_count
from dystop.record import ACCURACY, RoundRecord
from dystop.types import FAITHFUL
from dystop.units import NOTHING, data, number, percent, plural, seconds

NOT_RECORDED = "not recorded"

Tile = tuple[str, str, str]  # value, its name, details

PLANNING_ONLY: Tile = ("planning only", f"test {ACCURACY}", "no model is trained")


def section(run: RunFiles, name: str) -> dict[str, Any]:
    """Return a section of the configuration, empty where it is missing."""
    found = (run.config or {}).get(name)
    return found if isinstance(found, dict) else {}


def mechanism(run: RunFiles) -> dict[str, Any]:
    """Return the mechanism with its provenance; `inexact` where it differs from the original."""
    found = (run.info or {}).get("mechanism")
    found = found if isinstance(found, dict) else {}
    provenance = as_text(found.get("provenance"))
    return {
        "name": as_text(found.get("name") or section(run, "mechanism").get("name"), NOT_RECORDED),
        "mode": as_text(found.get("mode")),
        "provenance": provenance,
        "inexact": provenance not in FAITHFUL | {"", "reference"},
        "summary": as_text(found.get("summary")),
    }


def is_testbed(run: RunFiles) -> bool:
    """Return whether the run is a testbed run, whose clock is measured."""
    return (run.info or {}).get("kind") == "testbed"


def is_planned(run: RunFiles) -> bool:
    """Return whether the run is planning only: nothing is trained (`engine.train = false`)."""
    return section(run, "engine").get("train") is False


def data_text(run: RunFiles) -> str:
    """Return data set and skew."""
    found = section(run, "data")
    phi = as_number(found.get("phi"))
    skew = f", phi {phi:g}" if phi is not None else ""
    return as_text(found.get("name"), NOT_RECORDED) + skew


def law_name(run: RunFiles) -> str:
    """Return the timing law of a run; real processes follow that of the testbed."""
    return "testbed" if is_testbed(run) else as_text((run.info or {}).get("timing"), NOT_RECORDED)


def score_name(evaluated: RoundRecord | None) -> str:
    """Return the name of the score of an evaluation: accuracy, or that of its task."""
    return as_text(evaluated.get("score_name") if evaluated else None, ACCURACY)


def score_text(value: object, name: str) -> str:
    """Return a score as text; only an accuracy is a share.

    >>> score_text(0.5, "accuracy"), score_text(0.5, "r2"), score_text(None, "r2")
    ('50.0 %', '0.500', '–')
    """
    found = as_number(value)
    return percent(found) if name == ACCURACY else number(found)


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """Return the settings of a run that matter most."""
    info, bound = run.info or {}, as_number(section(run, "mechanism").get("staleness_bound"))
    where = "testbed: real processes, measured seconds" if is_testbed(run) else "simulator"
    if is_planned(run):
        where = "simulator, planning only: no model is trained"
    rows = [
        ("runs on", where),
        ("timing law", law_name(run)),
        ("publish rule", as_text(info.get("publish"), NOT_RECORDED)),
        ("data", data_text(run)),
        ("model", _model(run)),
        ("seed", as_text(info.get("seed"), NOT_RECORDED)),
    ]
    return [*rows, ("staleness bound", number(bound))] if bound is not None else rows


def _model(run: RunFiles) -> str:
    size = as_number((run.fleet or {}).get("model_bytes"))
    return as_text(section(run, "model").get("name"), NOT_RECORDED) + (
        f", {data(size)}" if size else ""
    )


def tiles(run: RunFiles, history: History) -> list[Tile]:
    """Return the headline numbers of the last round."""
    last = history.last
    unit = "measured time" if is_testbed(run) else "simulated time"
    if last is None:
        return [(NOTHING, "round", "no round has closed yet")]
    return [
        (number(last.round), "round", _limit_text(section(run, "stop").get("rounds"), number)),
        (f"{number(as_number(last.clock_s))} s", unit, _time(last, section(run, "stop"))),
        PLANNING_ONLY if is_planned(run) else _score(history.evaluated),
        (data(as_number(last.wire_bytes_total)), "on the wire", _links(last)),
        (_staleness(last), "staleness", _bound(run)),
        (number(as_number(last.loss)), "training loss", _duration(last)),
        (f"{number(as_number(last.active))} / {number(as_number(last.alive))}", "active / alive",
         f"of {plural(n, 'worker')}" if (n := worker_count(run, history)) else ""),
    ]  # fmt: skip


def _limit_text(limit: object, shown: Any) -> str:
    found = as_number(limit)
    return f"of at most {shown(found)}" if found else ""


def _time(last: RoundRecord, stop: dict[str, Any]) -> str:
    """Return hours if the seconds are many, and the limit."""
    clock_s = as_number(last.clock_s) or 0.0
    hours = f"{number(clock_s / 3600)} h" if clock_s >= 10_000 else ""
    return ", ".join(filter(None, (hours, _limit_text(stop.get("seconds"), seconds))))


def _score(evaluated: RoundRecord | None) -> Tile:
    name = score_name(evaluated)
    if evaluated is None:
        return NOTHING, f"test {name}", "not evaluated yet"
    own, std = as_number(evaluated.accuracy) or 0.0, as_number(evaluated.get("accuracy_std"))
    if name == ACCURACY:
        spread = f" ± {100 * std:.1f}" if std is not None else ""
        value = f"{100 * own:.1f}{spread} %"
    else:
        value = number(own) + (f" ± {std:.2g}" if std is not None else "")
    merged = as_number(evaluated.get("accuracy_global"))
    details = f", global {score_text(merged, name)}" if merged is not None else ""
    return value, f"test {name}", f"own models{details}, round {number(evaluated.round)}"


def _links(last: RoundRecord) -> str:
    lost = f", {number(as_number(last.lost))} lost" if last.lost else ""
    links = plural(int(as_number(last.links) or 0), "link")
    return f"{links} in the last round{lost}"


def _staleness(last: RoundRecord) -> str:
    return f"{number(as_number(last.staleness_mean))} / {number(as_number(last.staleness_max))}"


def _bound(run: RunFiles) -> str:
    bound = as_number(section(run, "mechanism").get("staleness_bound"))
    return "mean / largest" + ("" if bound is None else f", bound {number(bound)}")


def _duration(last: RoundRecord) -> str:
    return f"the round took {seconds(as_number(last.duration_s))}"


def progress(run: RunFiles, last: RoundRecord | None) -> float | None:
    """Return the used share of the tightest limit, from 0 to 1; None without a limit."""
    if last is None:
        return None
    stop = section(run, "stop")
    limits = [(last.round, stop.get("rounds")), (last.clock_s, stop.get("seconds"))]
    shares = [done / limit for done, raw in limits if (limit := as_number(raw))]
    return min(1.0, max(shares)) if shares else None


def notices(run: RunFiles, follower: LogFollower) -> list[str]:
    """Return warnings that a reader needs before trusting the numbers."""
    history, out = follower.history, []
    files = [("run.json", run.info), ("config.toml", run.config), ("fleet.json", run.fleet)]
    if unread := [name for name, found in files if found is None]:
        out.append(f"{' and '.join(unread)} cannot be read, so its content is missing here.")
    if history.damaged:
        out.append(f"{plural(history.damaged, 'line')} of records.jsonl could not be read.")
    if follower.is_stuck:
        out.append("records.jsonl has a line that is too long; nothing after it can be shown.")
    return [*out, *_run_notices(run, history)]


def _run_notices(run: RunFiles, history: History) -> list[str]:
    out = []
    found = mechanism(run)
    if "reconstruction" in found["provenance"]:
        out.append(
            f"{found['name']} is a reconstruction: not every detail of the original is known, so "
            "these numbers do not reproduce the published ones."
        )
    if history.evaluated is not None and (lost := as_number(history.evaluated.get("diverged"))):
        models = f"{plural(int(lost), 'model')} {'has' if lost == 1 else 'have'}"
        out.append(f"{models} diverged: the loss is not finite.")
    if (
        history.evaluated is not None
        and (tested := as_count(history.evaluated.get("tested"))) is not None
    ):
        workers = worker_count(run, history)
        if tested < workers:
            out.append(f"The last score rests on {tested} of {plural(workers, 'model')}.")
    if not is_planned(run) and (size := as_number(section(run, "model").get("wire_bytes"))):
        out.append(
            f"Stand-in model: clock and traffic are those of a model of {data(size)}; "
            f"{score_name(history.evaluated)} and loss are those of the model that was trained "
            "instead (model.wire_bytes)."
        )
    return out


def end_text(run: RunFiles) -> str:
    """Return why a run ended, and the command that resumes it."""
    reason = as_text((run.info or {}).get("stop_reason"))
    if run.status == "interrupted":
        command = "dystop testbed --resume RUN" if is_testbed(run) else "dystop resume RUN"
        return f"Interrupted. To resume: {command}"
    if run.status == "failed":
        return f"Failed: {reason or 'no reason was recorded'}"
    return f"Finished: {reason}" if run.status == "finished" and reason else ""


def age_s(run: RunFiles) -> float | None:
    """Return seconds since the last round was written."""
    if run.changed_s is None:
        return None
    return round(max(0.0, time.time() - run.changed_s), 1)
