"""Waves of trainings: how many should wait for an idle GPU, and whether waves change a bit.

    python benchmarks/waves.py sweep --device cuda --workers 100 --worth 8,16,32,64 --out FILE
    python benchmarks/waves.py equal --device cuda --out FILE

`sweep` measures images per second for several values of `waves.WORTH_A_WAVE`. `equal` runs every
free-running mechanism with waves and without them, under both timing laws and both publish rules,
and compares all records and the models at the end. Both print JSON lines, which --out keeps.
"""

import argparse
import hashlib
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dystop.bench.settings import DEVICE, Settings, Work, experiment
from dystop.bench.waves import FREE_RUNNING, MECHANISMS, Run
from dystop.experiments.building import build
from dystop.simulator import no_round, run_rounds, waves
from dystop.simulator.loop import begin
from dystop.simulator.state import Components
from dystop.training.device import pick_device

AGGREGATED = ("evaluate.model=aggregated", "evaluate.every_rounds=7", "engine.timing=overlap",
              "engine.publish=on_completion")  # fmt: skip


def sweep(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure every mechanism under every threshold, D-PSGD for comparison first."""
    work = Work("cnn", (1, 28, 28), args.workers, args.images, 32, large_batch=32)
    found = {name: build(experiment(settings, work, *MECHANISMS[name])).components
             for name in ("D-PSGD", *FREE_RUNNING)}  # fmt: skip
    for name, components in found.items():
        run = Run(components, args.epochs * (1 if name == "D-PSGD" else args.workers))
        for worth in args.worth if name != "D-PSGD" else args.worth[:1]:
            waves.WORTH_A_WAVE, waves.LEAST_SHARE = worth, 1
            Run(components, -(-run.rounds // 4)).images_per_s()  # captures graphs
            rate = run.images_per_s()
            yield {"mechanism": name, "workers": args.workers, "worth_a_wave": worth,
                   "images_per_s": round(rate), "host_ms": round(run.host_ms[-1], 4),
                   "rounds_per_wave": round(run.waves.width, 1),
                   "ended_by": run.waves.ended_by}  # fmt: skip


def equal(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare waves with one round after another, to the bit."""
    work = Work("cnn", (1, 28, 28), args.workers, args.images, 32, large_batch=32)
    laws = itertools.product(("paper", "overlap"), ("eager", "on_completion"))
    cases = [(f"engine.timing={law}", f"engine.publish={rule}") for law, rule in laws]
    for name, words in itertools.product(FREE_RUNNING, [*cases, AGGREGATED]):
        components = build(experiment(settings, work, *MECHANISMS[name], *words)).components
        components = replace(components, stop=replace(components.stop, rounds=args.rounds))
        digests = [digest(components, ahead) for ahead in (True, False)]
        yield {"mechanism": name, "words": words, "equal": digests[0] == digests[1]}


def digest(components: Components, ahead: bool) -> str:
    """Return a digest of all records and the last models of a run."""
    components = replace(components, engine=replace(components.engine, ahead=ahead))
    total = hashlib.sha256()
    state = begin(components)
    for record, after in run_rounds(components, state, no_round):
        total.update(record.to_json().encode())
        state = after
    models = state.models
    stacks = (models.latest, models.counters, models.finished, models.start, models.aggregated)
    for stack in (*stacks, *models.snapshots.values()):
        if stack is not None:
            total.update(stack.cpu().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sweep", "equal"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--images", type=int, default=600, help="of each worker")
    parser.add_argument("--epochs", type=int, default=10, help="trainings of each worker, sweep")
    parser.add_argument("--rounds", type=int, default=150, help="of a run, equal")
    parser.add_argument("--worth", default="8,16,32,64", help="thresholds of the sweep")
    parser.add_argument("--out", type=Path, help="file for the JSON lines")
    args = parser.parse_args()
    args.worth = [int(word) for word in args.worth.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(pick_device(args.device), ("cnn",), DEVICE, Path(folder))
        lines = []
        for line in (sweep if args.what == "sweep" else equal)(settings, args):
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
