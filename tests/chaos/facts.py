"""What a run left behind, in figures: endings, pulls, accuracy, memory."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dystop.experiments.config import read_experiment
from dystop.experiments.run_folder import CONFIG
from dystop.experiments.testbed.enrolment import COORDINATOR, OBSERVER, node_names
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.worker.checkpoint import decode_state
from dystop.testbed.worker.history import read_event_log

SAMPLES = "samples.jsonl"
WARM_S = 300.0  # memory is watched from here on
YOUNG_S = 60.0  # a process still loads what it needs
TESTS = 10  # of the observer, at the end
Facts = dict[str, Any]


def facts_of(folder: Path, wall_s: float, bad: str = "") -> Facts:
    """All figures of a run; what the bad peer trained is left out of the accuracy."""
    ledger = SqliteLedger(folder / "state.db")
    try:
        endings = Counter(o.outcome for o in ledger.rows("orders") if o.outcome is not None)
        reports = [json.loads(r.json) for r in ledger.rows("reports")]
    finally:
        ledger.close()
    durations = sorted(durations_of(folder))
    used = [u for report in reports for u in report.get("used", ())]
    refused = Counter(r["code"] for report in reports for r in report.get("rejected", ()))
    return {
        "folder": str(folder),
        "wall_s": round(wall_s, 1),
        "rounds": len(durations),
        "round_s": [round(_quantile(durations, q), 3) for q in (0.5, 0.95, 1.0)],
        "endings": dict(endings),
        "done_or_late": _kept(endings),
        "pulls": len(used),
        "resumed": sum(u.get("resumes", 0) > 0 for u in used),
        "refused": dict(refused),
        "bad_used": _used_of(folder, bad) if bad else 0,
        **_tested(folder),
        **accuracy_of(folder, (bad,)),
        **_memory(folder),
    }


def durations_of(folder: Path) -> list[float]:
    """Length of every round that has a record."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line)["duration_s"] for line in lines]


def _tested(folder: Path) -> Facts:
    """Mean of the last ten tests that the observer made: one alone depends on its moment."""
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    last = [line for line in lines if line.get("accuracy_global") is not None][-TESTS:]
    count = max(1, len(last))
    return {
        "accuracy_global": sum(line["accuracy_global"] for line in last) / count,
        "accuracy_local": sum(line["accuracy"] for line in last) / count,
    }


def _kept(endings: Counter[str]) -> float:
    return (endings["DONE"] + endings["LATE"]) / max(1, endings.total())


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def _used_of(folder: Path, name: str) -> int:
    """How often somebody used what this peer served."""
    number = int(name[1:])
    diaries = [p for p in folder.rglob("history.jsonl") if p.parent.name != name]
    lines = (line for path in diaries for line in read_event_log(path))
    return sum(line["kind"] == "used" and line["node"] == number for line in lines)


def accuracy_of(folder: Path, without: Container[str] = ()) -> dict[str, float]:
    """Of the models in the checkpoints, on the whole test set."""
    from dystop.experiments.testbed.parts import observer_parts
    from dystop.testbed.observer import evaluate_models

    experiment = read_experiment(folder / CONFIG)
    parts: Any = replace(observer_parts(experiment), samples=None)
    models = {}
    for node, name in enumerate(node_names(experiment)):
        path = folder / "workers" / name / "worker.safetensors"
        if name not in without and path.is_file():
            state: Any = decode_state(path.read_bytes())
            state = state[0] if isinstance(state, tuple) else state  # as it was in early runs
            models[node] = state.published
    score = evaluate_models(parts, models)
    assert score is not None
    return {"end_global": score["accuracy_global"], "end_local": score["accuracy"]}


def _memory(folder: Path) -> Facts:
    lines = [json.loads(line) for line in (folder / SAMPLES).read_text().splitlines()]
    names = sorted({line["name"] for line in lines})
    fleet = [line for line in lines if line["name"] not in (COORDINATOR, OBSERVER)]
    return {
        "rss_growth": {
            "observer": growth(lines, OBSERVER, WARM_S),
            "coordinator": growth(lines, COORDINATOR, WARM_S),
            "workers": _fleet_growth(fleet),
        },
        "rss_mb": {
            name: round(max(n["rss_bytes"] for n in lines if n["name"] == name) / 1e6)
            for name in names
        },
        "descriptors": max(line["descriptors"] for line in lines),
        "threads": max(line["threads"] for line in lines),
    }


def growth(lines: Iterable[Facts], name: str, from_s: float) -> float | None:
    """Growth of a process's memory from `from_s` to its end, as a share; None: not long enough.

    The median of ten samples on either side; only the newest process of that name counts, and not
    its first minute.
    """
    mine = [line for line in lines if line["name"] == name]
    mine = [line for line in mine if line["pid"] == mine[-1]["pid"]]
    mine = [line for line in mine if line["at_s"] >= mine[0]["at_s"] + YOUNG_S]
    sizes = [line["rss_bytes"] for line in mine if line["at_s"] >= from_s]
    if len(sizes) < 20:
        return None
    return float(sorted(sizes[-10:])[5] / sorted(sizes[:10])[5] - 1.0)


def _fleet_growth(lines: list[Facts]) -> float | None:
    """Median memory of all workers in the last minute against that after five minutes."""
    end_s = max(line["at_s"] for line in lines)
    early = sorted(n["rss_bytes"] for n in lines if WARM_S <= n["at_s"] < WARM_S + 60)
    late = sorted(n["rss_bytes"] for n in lines if n["at_s"] > end_s - 60)
    if not early or end_s < WARM_S + 120:
        return None
    return float(late[len(late) // 2] / early[len(early) // 2] - 1.0)
