"""One run in a process of its own, measured: `python -m dystop_benchmarks.child KEY=VALUE...`.

It prints one JSON object with seconds and bytes. The state of the calling process (imports, memory,
compiled code) cannot influence the run.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from dystop.runs.building import Built
    from dystop.simulator.state import Components

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def main(words: list[str]) -> None:
    """Build and run the experiment; print what it took."""
    began = time.perf_counter()
    from dystop.errors import DystopError

    try:
        found = measure(words, began)
    except DystopError as error:  # the calling process shows it
        found = {"error": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")


def measure(words: list[str], began: float) -> dict[str, Any]:
    """Return seconds, bytes and results of one run."""
    from dystop.config import read_experiment
    from dystop.runs.building import build

    imported_s = time.perf_counter() - began
    before_bytes = peak_process_bytes()
    built = build(read_experiment(None, words))
    built_s = time.perf_counter() - began - imported_s
    spent = _rounds(built.components)
    found = {"import_s": imported_s, "build_s": built_s, **spent}
    return {**found, "before_bytes": before_bytes, **_memory(built)}


def _rounds(parts: "Components") -> dict[str, Any]:
    """Run to the end; return seconds in training, in evaluation, and in everything else."""
    from dystop.simulator import no_round, run_rounds
    from dystop.simulator.round import begin
    from dystop_benchmarks.stopwatch import with_stopwatch

    timed, watch = with_stopwatch(parts)
    began = time.perf_counter()
    last = None
    for record, _ in run_rounds(timed, begin(timed), no_round):
        last = record
    training, evaluation = (watch.seconds(name) for name in ("training", "evaluation"))
    total_s, trained_s, evaluated_s = time.perf_counter() - began, sum(training), sum(evaluation)
    return {
        "rounds_s": total_s,
        "training_s": trained_s,
        "evaluation_s": evaluated_s,
        "other_s": total_s - trained_s - evaluated_s,
        "first_training_s": training[0] if training else 0.0,
        "first_evaluation_s": evaluation[0] if evaluation else 0.0,
        "trainings": len(training),
        "evaluations": len(evaluation),
        "rounds": 0 if last is None else last.round,
        "images": 0 if last is None else last.samples_total,
        "accuracy": None if last is None else last.accuracy,
    }


def _memory(built: "Built") -> dict[str, Any]:
    """Return the estimate that a run prints, and the measured peak."""
    device = built.components.trainer.device
    return {"estimate_bytes": printed_bytes(built.memory), "peak_bytes": peak_bytes(device)}


def printed_bytes(table: str) -> int:
    """Return the total of a printed estimate.

    >>> printed_bytes("models   3.0 MiB" + chr(10) + "total    3.5 MiB")
    3670016
    """
    total = next(line for line in table.splitlines() if line.startswith("total"))
    value, unit = total.split()[-2:]
    return int(float(value.replace(",", "")) * _UNITS[unit])


def peak_bytes(device: "torch.device") -> int:
    """Return the peak memory of the process, or of torch on a GPU."""
    if device.type != "cuda":
        return peak_process_bytes()
    import torch

    return int(torch.cuda.max_memory_reserved(device))


def peak_process_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the peak memory of this process.

    On Linux `ru_maxrss` starts at the value of the parent, so `VmHWM` is read first.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main(sys.argv[1:])
