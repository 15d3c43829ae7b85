"""Waves of trainings: the host's share, images per second, whether waves change a bit.

    python benchmarks/waves.py host --workers 100,1000 --repeat 7
    python benchmarks/waves.py speed --device cuda --workers 100,1000 --out FILE
    python benchmarks/waves.py together --device cuda --processes 8 --out FILE
    python benchmarks/waves.py equal --device cuda --out FILE

`host` measures the processor milliseconds of a round whose training costs nothing, and the digest
of its records, by which two versions are compared.
`speed` measures images per second beside D-PSGD. `together` measures several runs of one mechanism
at the same time, each in a process of its own, as a study with `--jobs` runs them: by the images of
all runs, over the seconds of the slowest. It takes the first of --workers.
`equal` runs every free-running mechanism with waves and without them, under the laws `paper` and
`overlap` and both publish rules, and compares all records and the models at the end.
All print JSON lines, which --out keeps.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Any

import numpy as np

from dystop.runs.building import build
from dystop.simulator import no_round, run_rounds
from dystop.simulator.round import begin
from dystop.simulator.state import Components
from dystop.training.device import pick_device
from dystop.training.problem import Trained
from dystop_benchmarks.settings import DEVICE, Settings, Work, experiment
from dystop_benchmarks.waves import FREE_RUNNING, MECHANISMS, HostClock, Run

AGGREGATED = ("evaluate.model=aggregated", "evaluate.every_rounds=7", "engine.timing=overlap",
              "engine.publish=on_completion")  # fmt: skip


def host(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure rounds of every mechanism, and the same with the line of JSON that they write."""
    for workers, name in itertools.product(args.workers, FREE_RUNNING):
        components = untrained(settings, workers, name)
        stop = replace(components.stop, rounds=args.rounds)
        components = replace(components, stop=stop)
        host_round(components, as_json=True)  # loads machine code
        taken = [host_round(components, as_json=False)[0] for _ in range(args.repeat)]
        written, digest = zip(
            *(host_round(components, as_json=True) for _ in range(args.repeat)), strict=True
        )
        yield {"mechanism": name, "workers": workers, "least_ms": round(min(taken), 4),
               "median_ms": round(median(taken), 4), "with_json_ms": round(min(written), 4),
               "records": digest[0][:12]}  # fmt: skip


def untrained(settings: Settings, workers: int, name: str) -> Components:
    """Return a fleet with a small model, whose trainings return what they were given."""
    work = Work("softmax", (1, 2, 2), workers, 600, 32, large_batch=32, test_images=10)
    components = build(experiment(settings, work, *MECHANISMS[name])).components
    trainer: Any = components.trainer

    def train(models: Any, counters: Any, nodes: Any, versions: Any, steps: Any, *_: Any) -> Any:
        losses = np.zeros(len(nodes))
        return Trained(models, counters, losses, trainer.samples_seen(nodes, steps))

    trainer.train = train
    return components


def host_round(components: Components, *, as_json: bool) -> tuple[float, str]:
    """Return the processor milliseconds of a round, and a digest of the lines that were made."""
    state, lines = begin(components), hashlib.sha256()
    clock = HostClock(components.trainer)
    with clock:
        for record, _ in run_rounds(components, state, no_round):
            if as_json:
                lines.update(record.to_json().encode())
    return 1e3 * clock.seconds / components.stop.rounds, lines.hexdigest()


def speed(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure D-PSGD, and every mechanism that wakes one worker at a time, over as many images."""
    for workers in args.workers:
        work = Work("cnn", (1, 28, 28), workers, args.images, 32, large_batch=32)
        reference = 0.0
        for name in ("D-PSGD", *FREE_RUNNING):
            components = build(experiment(settings, work, *MECHANISMS[name])).components
            run = Run(components, args.epochs * (1 if name == "D-PSGD" else workers))
            Run(components, -(-run.rounds // 4)).images_per_s()  # captures graphs
            rate = max(run.images_per_s() for _ in range(args.repeat))
            reference = reference or rate
            yield {"mechanism": name, "workers": workers, "images_per_s": round(rate),
                   "ratio": round(rate / reference, 3), "host_ms": round(min(run.host_ms), 4),
                   "rounds": run.rounds, "rounds_per_wave": round(run.waves.width, 1),
                   "ended_by": run.waves.ended_by}  # fmt: skip


def together(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure processes that run one mechanism side by side, beside D-PSGD in one process."""
    alone = next(speed(settings, args))
    yield alone
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(args.processes, context) as pool:
        measure = partial(_seconds, settings, args, manager.Barrier(args.processes))
        taken = list(pool.map(measure, range(args.processes)))
    images = args.processes * args.epochs * args.workers[0] * args.images
    for name in FREE_RUNNING:
        rate = images / max(seconds[name] for seconds in taken)
        ratio = round(rate / alone["images_per_s"], 3)
        yield {"mechanism": name, "workers": args.workers[0], "processes": args.processes,
               "images_per_s": round(rate), "ratio": ratio}  # fmt: skip


def _seconds(
    settings: Settings, args: argparse.Namespace, barrier: Barrier, seed: int
) -> dict[str, float]:
    """Return the seconds of one run of every mechanism; all processes begin it together."""
    workers = args.workers[0]
    work = Work("cnn", (1, 28, 28), workers, args.images, 32, large_batch=32)
    seconds = {}
    for name in FREE_RUNNING:
        words = (*MECHANISMS[name], f"seed={seed}")
        components = build(experiment(settings, work, *words)).components
        Run(components, -(-args.epochs * workers // 4)).images_per_s()  # captures graphs
        run = Run(components, args.epochs * workers)
        barrier.wait()
        began = time.perf_counter()
        run.images_per_s()
        seconds[name] = time.perf_counter() - began
    return seconds


def equal(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare waves with one round after another, to the bit."""
    laws = itertools.product(("paper", "overlap"), ("eager", "on_completion"))
    cases = [(f"engine.timing={law}", f"engine.publish={rule}") for law, rule in laws]
    for workers, name, words in itertools.product(args.workers, FREE_RUNNING, [*cases, AGGREGATED]):
        work = Work("cnn", (1, 28, 28), workers, args.images, 32, large_batch=32)
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
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("what", choices=("host", "speed", "together", "equal"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", default="100", help="of the fleets, as in 100,1000")
    parser.add_argument("--images", type=int, default=600, help="of each worker")
    parser.add_argument("--epochs", type=int, default=10, help="trainings of each worker")
    parser.add_argument("--rounds", type=int, default=150, help="of a run, host and equal")
    parser.add_argument("--repeat", type=int, default=5, help="measurements, host and speed")
    parser.add_argument("--processes", type=int, default=8, help="at the same time, together")
    parser.add_argument("--out", type=Path, help="file for the JSON lines")
    args = parser.parse_args()
    args.workers = [int(word) for word in args.workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(pick_device(args.device), ("cnn",), DEVICE, Path(folder))
        lines = []
        measure = {"host": host, "speed": speed, "together": together, "equal": equal}[args.what]
        for line in measure(settings, args):
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
