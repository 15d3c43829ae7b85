"""A run that kills its own process, with SIGKILL, at a chosen point. Started by test_resume.py.

python doomed.py FOLDER POINT COUNT: the COUNT-th time POINT is passed, the process is gone.
"""

import os
import signal
import sys
from pathlib import Path

from dystop import storage
from dystop.experiments import run
from dystop.experiments.config import read_experiment
from dystop.simulator import checkpoint

CONFIG = [
    "data.name=synthetic",
    "data.synthetic.train=300",
    "data.synthetic.test=100",
    "model.name=softmax",
    "fleet.workers=8",
    "stop.rounds=24",
    "evaluate.every_rounds=3",
    "output.checkpoint_every=4",
    "engine.publish=on_completion",
    "world.churn.enabled=true",
    "world.mobility.enabled=true",
    "world.outages.loss=0.05",
    "mechanism.estimate=last",
]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, count: int) -> None:
    """Replace one function by a version that dies in the middle of its work."""
    left = [count]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    if point == "half a checkpoint":
        whole = checkpoint.save_file

        def half(tensors, path, metadata):
            whole(tensors, path, metadata=metadata)
            if due():
                os.truncate(path, Path(path).stat().st_size // 2)
                die()

        checkpoint.save_file = half
    elif point == "before the rename":
        write_atomic = storage.write_atomic

        def doomed_write_atomic(path, content):
            def crash(step):
                if step == "before_rename" and due():
                    die()

            write_atomic(path, content, on_step=crash)

        checkpoint.write_atomic = doomed_write_atomic
    elif point == "after the rename":
        listing = checkpoint.checkpoints

        def doomed_listing(folder):
            if due():
                die()
            return listing(folder)

        checkpoint.checkpoints = doomed_listing
    elif point == "half a line":
        write = storage.AppendLog._write

        def doomed_write(self, data):
            if due():
                write(self, data[: len(data) // 2])
                die()
            write(self, data)

        storage.AppendLog._write = doomed_write


def main(folder: str, point: str, count: str) -> None:
    arm(point, int(count))
    seen = [0]

    def on_record(record):
        seen[0] += 1
        if point == "after a record" and seen[0] == int(count):
            die()

    experiment = read_experiment(None, CONFIG)
    path = Path(folder)
    run.run_experiment(experiment, path.parent, path.name, lambda started: None, on_record)


if __name__ == "__main__":
    main(*sys.argv[1:])
