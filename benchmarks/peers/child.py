"""What every script of this folder shares: the work to do, and one line of JSON that says how fast.

Needs numpy only, because each peer runs in an environment of its own.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

LAUNCHED = "PEERS_LAUNCHED"
"""Environment variable: time.monotonic() of the runner when it launched this process."""

_MEAN, _STD = 0.286, 0.353  # of Fashion-MNIST


@dataclass(frozen=True)
class Work:
    """The same for everybody: `rounds` timed rounds of one local epoch after one to warm up."""

    data: Path
    workers: int
    rounds: int
    batch: int
    learning_rate: float
    _stdout: int = 1

    @property
    def total_rounds(self) -> int:
        """Rounds to run: one to warm up, then those that are timed."""
        return self.rounds + 1

    def shards(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per worker its images, float32 [n, 1, 28, 28], and labels, int64 [n]."""
        with np.load(self.data, allow_pickle=False) as file:
            x, y = file["x_train"], file["y_train"].astype(np.int64)
        x = ((x.reshape(-1, 1, 28, 28) / np.float32(255) - _MEAN) / _STD).astype(np.float32)
        parts = np.array_split(np.arange(len(x)), self.workers)
        return [(x[part], y[part]) for part in parts]


def read_work() -> Work:
    """The work, from the command line. From now on what libraries print goes to stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    stdout = os.dup(1)
    os.dup2(2, 1)
    return Work(**vars(parser.parse_args()), _stdout=stdout)


@dataclass
class Report:
    """Collects the end of every round; `send` writes the line that the runner reads."""

    work: Work
    _ended: list[float] = field(default_factory=list)
    _images: list[int] = field(default_factory=list)

    def round_ended(self, images: int) -> None:
        """Note that a round is over, in which so many images were trained on."""
        self._ended.append(time.monotonic())
        self._images.append(int(images))

    def send(
        self, package: str, mode: str, loss: tuple[float, float], workers: int | None = None
    ) -> None:
        """Write the line.

        Args:
            package: Distribution whose version is reported.
            mode: How the work was done, in words.
            loss: Training loss at the start and at the end.
            workers: Number of workers, where it is not the one asked for.
        """
        seconds = np.diff(self._ended)
        launched = float(os.environ.get(LAUNCHED, "nan"))
        line = {
            "version": version(package),
            "mode": mode,
            "workers": workers or self.work.workers,
            "images": self._images[1:],
            "images_per_s": (np.array(self._images[1:]) / seconds).tolist(),
            # All that is not a steady round: imports, data, processes, compilation.
            "startup_s": self._ended[0] - launched - float(np.median(seconds)),
            "loss": [float(loss[0]), float(loss[1])],
            "ended": self._ended,
        }
        sys.stdout.flush()
        os.write(self.work._stdout, (json.dumps(line) + "\n").encode())
