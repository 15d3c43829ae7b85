"""Runs whose accuracies are given."""

from pathlib import Path

from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop_paper.data.measures import ArmRuns
from dystop_paper.reproduce.campaigns import Arm


def outcome(key: str, *seeds: list[float]) -> ArmRuns:
    """An arm whose accuracies are given at 10 s, 20 s, ..., one list per seed."""
    runs = []
    for accuracies in seeds:
        records = [
            RoundRecord(
                round=k + 1, clock_s=10.0 * (k + 1), duration_s=10.0, alive=2, active=1, links=1,
                lost=0, wire_bytes=5, wire_bytes_total=5 * (k + 1),
                endpoint_bytes_total=10 * (k + 1), samples_total=1, epochs_total=1.0, idle_s=0.0,
                staleness_mean=1.0, staleness_max=1, staleness_histogram=[1], queue_mean=0.0,
                loss=1.0,
                added={
                    "compute_s": 20.0, "transfer_s": 0.0, "wait_others_s": 0.0,
                    "accuracy": accuracy,
                },
            )
            for k, accuracy in enumerate(accuracies)
        ]  # fmt: skip
        runs.append(RunData(Path(key), key, {}, {}, {}, records))
    return ArmRuns(Arm(key, key, ()), tuple(runs))
