"""Figures of a finished run: outcomes of orders, pulls, accuracy, memory."""

import json
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dystop.config import read_experiment
from dystop.folders.run_folder import CONFIG, open_run
from dystop.testbed.audit.facts import read_facts
from dystop.testbed.names import COORDINATOR, OBSERVER
from dystop.testbed.setup.enrolment import node_names
from dystop.testbed.worker.checkpoint import decode_state
from dystop.testbed.worker.history import read_event_log

SAMPLES = "samples.jsonl"
WARM_S = 300.0  # growth of memory is measured from here on
YOUNG_S = 60.0  # in which a process still loads its modules and data
EVALUATIONS = 10  # the last ones of the observer
Facts = dict[str, Any]


def facts_of(folder: Path, wall_s: float, bad: str = "") -> Facts:
    """Return all figures of a run; the accuracy leaves out the model of the bad peer."""
    endings = Counter(outcome for _, _, outcome in read_facts(folder).outcomes)
    durations = sorted(durations_of(folder))
    logs = [line for path in folder.rglob("history.jsonl") for line in read_event_log(path)]
    refused = Counter(line["code"] for line in logs if line["kind"] == "rejected")
    return {
        "folder": str(folder),
        "wall_s": round(wall_s, 1),
        "rounds": len(durations),
        "round_s": [round(_quantile(durations, q), 3) for q in (0.5, 0.95, 1.0)],
        "endings": dict(endings),
        "done_or_late": _share_done(endings),
        "pulls": sum(line["kind"] == "used" for line in logs),
        "refused": dict(refused),
        "bad_used": _uses_of(folder, bad) if bad else 0,
        **_evaluated(folder),
        **accuracy_of(folder, (bad,)),
        **_memory(folder),
    }


def durations_of(folder: Path) -> list[float]:
    """Return the duration of every round that has a record."""
    return [record.duration_s for record in open_run(folder).records]


def _evaluated(folder: Path) -> Facts:
    """Return the mean of the last ten evaluations: a single one depends on its moment."""
    records = open_run(folder).records
    tested = [r for r in records if r.get("accuracy_global") is not None]
    last, count = tested[-EVALUATIONS:], max(1, len(tested[-EVALUATIONS:]))
    return {
        "accuracy_global": sum(r.get("accuracy_global") or 0.0 for r in last) / count,
        "accuracy_local": sum(r.accuracy or 0.0 for r in last) / count,
        "tests": len(tested),
        "untested": dict(Counter(r.no_score for r in records if r.no_score is not None)),
    }


def _share_done(endings: Counter[str]) -> float:
    return (endings["DONE"] + endings["LATE"]) / max(1, endings.total())


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def _uses_of(folder: Path, name: str) -> int:
    """Return how often the other nodes used a model of this peer."""
    number = int(name[1:])
    logs = [p for p in folder.rglob("history.jsonl") if p.parent.name != name]
    lines = (line for path in logs for line in read_event_log(path))
    return sum(line["kind"] == "used" and line["node"] == number for line in lines)


def accuracy_of(folder: Path, without: Container[str] = ()) -> dict[str, float]:
    """Return the accuracy of the models in the checkpoints, on the whole test set."""
    from dystop.testbed.observer import evaluate_models
    from dystop.testbed.setup.parts import observer_parts

    experiment = read_experiment(folder / CONFIG)
    parts: Any = SimpleNamespace(
        **vars(replace(observer_parts(experiment), samples=None)), per_worker=False
    )
    models = {}
    for node, name in enumerate(node_names(experiment)):
        path = folder / "workers" / name / "worker.safetensors"
        if name not in without and path.is_file():
            models[node] = decode_state(path.read_bytes()).published
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
    """Return the relative growth of a process's memory after `from_s`; None: too few samples.

    Compares the medians of the first and the last ten samples. Only the newest process of that name
    counts, without its first minute.
    """
    mine = [line for line in lines if line["name"] == name]
    mine = [line for line in mine if line["pid"] == mine[-1]["pid"]]
    mine = [line for line in mine if line["at_s"] >= mine[0]["at_s"] + YOUNG_S]
    sizes = [line["rss_bytes"] for line in mine if line["at_s"] >= from_s]
    if len(sizes) < 20:
        return None
    return float(sorted(sizes[-10:])[5] / sorted(sizes[:10])[5] - 1.0)


def _fleet_growth(lines: list[Facts]) -> float | None:
    """Return the growth of the workers' median memory from the sixth minute to the last one."""
    end_s = max(line["at_s"] for line in lines)
    early = sorted(n["rss_bytes"] for n in lines if WARM_S <= n["at_s"] < WARM_S + 60)
    late = sorted(n["rss_bytes"] for n in lines if n["at_s"] > end_s - 60)
    if not early or end_s < WARM_S + 120:
        return None
    return float(late[len(late) // 2] / early[len(early) // 2] - 1.0)
