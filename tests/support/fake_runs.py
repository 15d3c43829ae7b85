"""Fake runs from a small seeded generator, shared by the tests of the report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.rng import stream

MODEL_BYTES = 87_360
CLASSES = [f"class {k}" for k in range(9)] + ["boot"]


def fake_fleet(workers: int, seed: int, server: bool = False) -> dict[str, Any]:
    """A fleet on a 100 m square with a skewed split."""
    rng = stream(seed, "fleet", workers)
    shares = rng.dirichlet(np.full(10, 0.4), workers)
    counts = np.round(shares * rng.integers(300, 900, workers)[:, None]).astype(int)
    return {
        "data_size": counts.sum(axis=1).tolist(),
        "label_counts": counts.tolist(),
        "class_names": CLASSES,
        "positions": rng.uniform(0, 100, (workers + server, 2)).tolist(),
        "area_m": [100.0, 100.0],
        "range_m": 40.0,
        "model_bytes": MODEL_BYTES,
        "model_parameters": MODEL_BYTES // 4,
        "physics": {"noise power": "1e-13 W", "bandwidth": "1 MHz per link"},
    }


def fake_links(rng: np.random.Generator, at: np.ndarray, active: np.ndarray) -> list[list[int]]:
    """Every active worker pulls from a few of its neighbours."""
    out = []
    for i in active:
        gap = np.linalg.norm(at - at[i], axis=1)
        near = np.flatnonzero((gap < 40) & (gap > 0))
        chosen = rng.permutation(near)[: min(4, len(near))]
        out += [[int(i), int(j)] for j in sorted(chosen)]
    return out


def fake_records(fleet: dict[str, Any], rounds: int, seed: int, **how: float) -> list[RoundRecord]:
    """Plausible learning: accuracy saturates, staleness follows who was active."""
    rng, n = stream(seed, "records"), len(fleet["data_size"])
    at, stale = np.asarray(fleet["positions"])[:n], np.zeros(n, int)
    now, wire, samples, rows = 0.0, 0, 0, []
    share, top, every = how.get("share", 0.2), how.get("top", 0.85), int(how.get("every", 5))
    for t in range(1, rounds + 1):
        want = np.exp(0.8 * stale) * rng.exponential(1.0, n)
        active = np.sort(np.argsort(-want)[: max(1, round(share * n * rng.uniform(0.6, 1.4)))])
        links = fake_links(rng, at, active)
        duration = float(rng.uniform(1.0, 2.0) * how.get("slow", 1.0))
        now, wire = now + duration, wire + len(links) * MODEL_BYTES
        samples += int(sum(np.asarray(fleet["data_size"])[active]))
        epochs = samples / sum(fleet["data_size"])
        hist = np.bincount(stale).tolist()
        score = top * (1 - np.exp(-epochs / 6)) + rng.normal(0, 0.005)
        tested = t % every == 0
        loss = float(2.3 * np.exp(-epochs / 8) + rng.normal(0, 0.1) ** 2)
        scores = {
            "accuracy": float(np.clip(score, 0, 1)),
            "accuracy_std": 0.02 + 0.06 * float(np.exp(-epochs / 5)),
            "accuracy_global": float(np.clip(score + 0.02, 0, 1)),
        }
        rows.append(
            RoundRecord(
                t, now, duration, n, len(active), len(links), 0, len(links) * MODEL_BYTES, wire,
                2 * wire, samples, epochs, 0.2 * n * duration, float(stale.mean()),
                int(stale.max()), hist, 0.0, loss,
                added={
                    "active_ids": active.tolist(), "link_pairs": links,
                    "compute_s": 0.7 * n * duration, "transfer_s": 0.1 * n * duration,
                    "wait_others_s": 0.1 * n * duration, **(scores if tested else {}),
                },
            )
        )  # fmt: skip
        stale = np.where(np.isin(np.arange(n), active), 0, stale + 1)
    return rows


def fake_run(
    name: str = "dystop-demo",
    mechanism: str = "dystop",
    provenance: str = "paper",
    workers: int = 20,
    rounds: int = 60,
    seed: int = 1,
    **how: float,
) -> RunData:
    """One fake run folder, already read."""
    fleet = fake_fleet(workers, 1)
    block: dict[str, Any] = {"name": mechanism, "V": 10.0}
    if mechanism == "dystop":
        block["staleness_bound"] = 2
    return RunData(
        path=Path("runs") / "demo folder" / "a",
        name=name,
        config={"seed": seed, "workers": workers, "mechanism": block, "data": {"phi": 0.4}},
        info={
            "dystop": "0.2.0", "python": "3.11.2", "torch": "2.13.0", "seed": seed,
            "status": "finished", "stop_reason": "200 rounds reached", "wall_s": 41.27,
            "timing": "paper", "publish": "eager",
            "mechanism": {"name": mechanism, "mode": "async", "provenance": provenance,
                          "summary": "Staleness-aware activation and a topology that follows."},
        },
        fleet=fleet,
        records=fake_records(fleet, rounds, seed, **how),
    )  # fmt: skip


def record_of_round(t: int, **more: Any) -> RoundRecord:
    """The record of round t in a run whose rounds last 1.5 s and whose loss is 1 / t."""
    return plain_record(t, 1.5 * t, **{"duration_s": 1.5, "loss": 1.0 / t, **more})


def plain_record(t: int, clock_s: float, **more: Any) -> RoundRecord:
    """A record of round numbers, to reckon with by hand."""
    base = RoundRecord(
        t, clock_s, 10.0, 4, 2, 3, 0, 300, 300 * t, 600 * t, 100 * t, 0.5 * t, 8.0, 1.0, 2,
        [1, 2, 1], 0.0, 1.0,
        added={"compute_s": 24.0, "transfer_s": 8.0, "wait_others_s": 4.0},
    )  # fmt: skip
    return changed(base, **more)


def changed(record: RoundRecord, **leaves: Any) -> RoundRecord:
    """Return a record with other values in some fields, also in those of recorders."""
    whole = {name: leaves.pop(name) for name in leaves.keys() & vars(record).keys()}
    added = {name: value for name, value in {**record.added, **leaves}.items() if value is not None}
    return replace(record, **whole, added=added)
