"""A child process that runs an experiment and kills itself with SIGKILL at a chosen point.

`python crashing_child.py FOLDER POINT COUNT WORDS...` kills the process when it reaches POINT for
the COUNT-th time; the words are its configuration. `test_resume.py` starts it.
"""

import os
import signal
import sys
from pathlib import Path

from dystop import storage
from dystop.config import read_experiment
from dystop.runs import run
from dystop.simulator import checkpoint
from dystop.simulator.waves import TrainingQueue
from dystop.training.trainer import Trainer

CONFIG = [
    "data.name=synthetic",
    "data.options.train=300",
    "data.options.test=100",
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

WAVES = [
    *CONFIG[:-1],
    "mechanism.name=ad-psgd",
    "fleet.workers=20",
    "stop.rounds=80",
    "output.checkpoint_every=25",
]
"""A mechanism that wakes one worker at a time, so that trainings of several rounds wait."""

_WIDE = 3  # rounds that wait together


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def insert_crash(point: str, count: int) -> None:
    """Replace the function at this point by one that kills the process on its COUNT-th call."""
    left = [count]

    def is_due() -> bool:
        left[0] -= 1
        return left[0] == 0

    if point == "half a checkpoint":
        save_file = checkpoint.save_file

        def crashing_save_file(tensors, path, metadata):
            save_file(tensors, path, metadata=metadata)
            if is_due():
                os.truncate(path, Path(path).stat().st_size // 2)
                crash()

        checkpoint.save_file = crashing_save_file
    elif point == "before the rename":
        write_atomic = storage.write_atomic

        def crashing_write_atomic(path, content):
            def on_step(step):
                if step == "before_rename" and is_due():
                    crash()

            write_atomic(path, content, on_step=on_step)

        checkpoint.write_atomic = crashing_write_atomic
    elif point == "after the rename":
        names = checkpoint._names

        def crashing_names(folder):
            if is_due():
                crash()
            return names(folder)

        checkpoint._names = crashing_names
    elif point == "trainings wait":
        train = TrainingQueue.train

        def crashing_train(self, *args):
            out = train(self, *args)
            if len(self._nodes) >= _WIDE and is_due():
                crash()
            return out

        TrainingQueue.train = crashing_train
    elif point == "half a wave":
        train_rows = Trainer.train

        def crashing_train(self, models, counters, workers, *args):
            if 20 > len(workers) >= _WIDE and is_due():
                half = len(workers) // 2
                parts = (args[0][:half], args[1][:half], args[2][:half])
                train_rows(self, models[:half], counters[:half], workers[:half], *parts)
                crash()
            return train_rows(self, models, counters, workers, *args)

        Trainer.train = crashing_train
    elif point == "half a line":
        write = storage.AppendLog._write

        def crashing_write(self, data):
            if is_due():
                write(self, data[: len(data) // 2])
                crash()
            write(self, data)

        storage.AppendLog._write = crashing_write


def main(folder: str, point: str, count: str, *words: str) -> None:
    insert_crash(point, int(count))
    seen = [0]

    def on_record(record):
        seen[0] += 1
        if point == "after a record" and seen[0] == int(count):
            crash()

    experiment = read_experiment(None, words)
    path = Path(folder)
    run.run_experiment(experiment, path.parent, path.name, lambda started: None, on_record)


if __name__ == "__main__":
    main(*sys.argv[1:])
