"""A Flower `ClientApp` as the local training of all workers (`model.name = "flower:..."`).

The app runs in a process of its own (`flower_child`), with any Python that has flwr: Flower and
dystop need different versions of some packages. It answers messages one after another: `query`
gives the initial arrays, `train` trains a worker's arrays on the worker's own part of the app's
data, and `evaluate` tests arrays there.
"""

import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.errors import ConfigError, UserCodeError
from dystop.sparse import Ints
from dystop.training.evaluate import Evaluation
from dystop.training.flat import Layout, Slot
from dystop.training.memory import MemoryEstimate
from dystop.training.params import TrainerParams
from dystop.training.problem import Job, Trained
from dystop.training.tasks.task import CLASSIFICATION
from dystop.training.trainer import Trainer, samples_seen
from dystop.training.trainers import flower_child

PREFIX = "flower:"
Array = NDArray[Any]
ANSWER_S = 3600.0
_END_S = 5.0  # for the process of an app to end before it is killed


class AppProcess:
    """The process that runs an app. It ends when its standard input does, also with this one."""

    def __init__(
        self, name: str, folder: str, python: str, workers: int, answer_s: float = ANSWER_S
    ) -> None:
        """Start it and wait until the app is imported.

        Args:
            name: `flower:package.module:app`.
            folder: Where the app lies; empty: here.
            python: Which Python runs it; empty: this one.
            workers: N.
            answer_s: How long an answer may take.

        Raises:
            ConfigError: The app cannot be imported.
        """
        self._path, self._answer_s = name.removeprefix(PREFIX), answer_s
        command = [python or sys.executable, str(Path(flower_child.__file__)), self._path]
        try:
            self._process = subprocess.Popen(
                [*command, folder, str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise ConfigError(
                f"model.python = {python!r}: cannot be started ({error.strerror}); give the Python "
                "of an environment that has flwr"
            ) from error
        weakref.finalize(self, _end, self._process)
        header, _ = self._answer()
        if "error" in header:
            raise ConfigError(
                f"model.name = {name!r}: the app cannot be imported: {_last(header['error'])}; "
                "model.folder says where it lies, and model.python which Python has flwr "
                "(pip install flwr, in an environment of its own)"
            )

    def ask(
        self, kind: str, worker: int, names: list[str], arrays: list[Array], config: Any
    ) -> tuple[dict[str, Any], list[Array]]:
        """Send a message to the app of a worker; return what it answers.

        Raises:
            UserCodeError: The app has failed, or has not answered in time.
        """
        stdin = self._process.stdin
        assert stdin is not None
        header = {"kind": kind, "worker": worker, "names": names, "config": config}
        with suppress(BrokenPipeError):  # the missing answer says that the process has ended
            flower_child.write_frame(stdin, header, arrays)
        found, answered = self._answer()
        if "error" in found:
            raise UserCodeError(
                f"flower app {self._path}: {kind!r} of worker {worker} failed: "
                f"{_last(found['error'])}; its traceback is above"
            )
        return found, answered

    def _answer(self) -> tuple[dict[str, Any], list[Array]]:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = Timer(self._answer_s, self._process.kill)
        deadline.daemon = True
        deadline.start()
        frame = None
        with suppress(ValueError):  # the process has ended in the middle of its answer
            frame = flower_child.read_frame(stdout)
        is_late = not deadline.is_alive()
        deadline.cancel()
        if frame is None and is_late:
            raise UserCodeError(
                f"flower app {self._path}: no answer within {self._answer_s:g} s; its process was "
                "ended. Does the app wait for something, such as a download or an input?"
            )
        if frame is None:
            raise UserCodeError(
                f"flower app {self._path}: its process has ended with code "
                f"{_exit_code(self._process)}"
            )
        if "error" in frame[0]:
            sys.stderr.write(frame[0]["error"])
        return frame


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process of an app that nobody needs, also in the middle of a training."""
    process.terminate()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    _exit_code(process)


def _exit_code(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of a process that is about to end; kill it if it does not."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_END_S)
    process.kill()
    return process.wait()


def _last(error: str) -> str:
    return error.strip().splitlines()[-1]


class FlowerTrainer(Trainer):
    """Trains and evaluates by the messages of a Flower app, one worker after another."""

    task = CLASSIFICATION
    base_parameters = 0
    returns_early = False
    rows_independent = False  # an app may keep a state, so the order of trainings matters
    evaluated_s = 0.0

    def __init__(
        self, app: AppProcess, workers: int, data_size: Ints, params: TrainerParams
    ) -> None:
        """Ask the app for the initial arrays.

        Args:
            app: The process that runs it.
            workers: N.
            data_size: Training samples of each worker, [N].
            params: Of these, batch and learning rate count.
        """
        self._workers = workers
        self.params, self.device, self.path = params, torch.device("cpu"), "flower"
        self._app, self._data_size = app, data_size
        header, self._first = app.ask("query", 0, [], [], {})
        self._names: list[str] = header["names"]
        kinds = _kinds(self._first)
        if "f" not in kinds or set(kinds) - set("fiub"):
            raise ConfigError(
                "flower app: @app.query() must reply with an ArrayRecord, the arrays with which "
                "all workers begin: floats, and if needed integers; their kinds are "
                f"{kinds}"
            )
        slots = [
            Slot(name, array.shape, torch.float32 if array.dtype.kind == "f" else torch.int64)
            for name, array in zip(self._names, self._first, strict=True)
        ]
        floats = tuple(slot for slot in slots if slot.dtype == torch.float32)
        self.layout = Layout(floats, (), tuple(s for s in slots if s.dtype != torch.float32))

    def initial(self) -> tuple[Tensor, Tensor]:
        """Return the arrays of the app as a vector [W] and counters [C]."""
        return self._flat(self._first)

    def _flat(self, arrays: list[Array]) -> tuple[Tensor, Tensor]:
        """Return floats and integers of arrays in the order of the layout."""
        floats = [a.reshape(-1).astype(np.float32) for a in arrays if a.dtype.kind == "f"]
        whole = [a.reshape(-1).astype(np.int64) for a in arrays if a.dtype.kind != "f"]
        counters = np.concatenate([np.zeros(0, np.int64), *whole])
        return torch.from_numpy(np.concatenate(floats)), torch.from_numpy(counters)

    def _arrays(self, model: Tensor, counters: Tensor) -> list[Array]:
        """Return a flat model as the arrays that the app knows."""
        floats, whole, out = model.numpy(), counters.numpy(), []
        for first in self._first:
            if first.dtype.kind == "f":
                part, floats = floats[: first.size], floats[first.size :]
            else:
                part, whole = whole[: first.size], whole[first.size :]
            out.append(part.reshape(first.shape).astype(first.dtype))
        return out

    def samples_seen(self, workers: Ints, steps: Ints) -> int:
        """Return how many samples local trainings see together."""
        return samples_seen(self._data_size[workers], steps, self.params.batch)

    def train_job(self, job: Job) -> Trained:
        """Send a `train` message for each row; the app decides what it does with it."""
        models, counters = job.models.clone(), job.counters.clone()
        losses = np.full(len(job.workers), np.nan)
        for row, worker in enumerate(job.workers.tolist()):
            config = {
                "lr": float(self.params.learning_rate * job.rates[row]),
                "server-round": int(job.versions[row]) + 1,
                "local-steps": int(job.steps[row]),
                "batch-size": self.params.batch,
            }
            arrays = self._arrays(models[row], counters[row])
            header, arrays = self._app.ask("train", worker, self._names, arrays, config)
            self._check_reply(worker, header["names"], arrays)
            models[row], counters[row] = self._flat(arrays)
            losses[row] = np.nan if header["loss"] is None else header["loss"]
        return Trained(models, counters, losses, self.samples_seen(job.workers, job.steps))

    def _check_reply(self, worker: int, names: list[str], arrays: list[Array]) -> None:
        """Refuse arrays that are not those which the app has got, changed by training."""
        for what, got, sent in (
            ("names", names, self._names),
            ("shapes", [a.shape for a in arrays], [a.shape for a in self._first]),
            ("kinds (f: float, i: integer)", _kinds(arrays), _kinds(self._first)),
        ):
            if got != sent:
                raise UserCodeError(
                    f"flower app: 'train' of worker {worker} must reply with the arrays that it "
                    f"got; their {what} are {got}, and should be {sent}"
                )

    def evaluate(
        self,
        models: Tensor,
        counters: Tensor,
        samples: int | None = None,
        recalibrate_on: Ints | None = None,
    ) -> Evaluation:
        """Send `evaluate` messages: model k to worker k, and a single model to all workers."""
        found = []
        for row in range(len(models)):
            arrays = self._arrays(models[row], counters[row])
            asked = range(self._workers) if len(models) == 1 else [row]
            answers = [self._app.ask("evaluate", k, self._names, arrays, {})[0] for k in asked]
            scores = [[_known(answer["score"]), _known(answer["loss"])] for answer in answers]
            found.append(np.mean(scores, axis=0))
        accuracy, loss = np.array(found).T
        return Evaluation(accuracy, loss)

    def estimate(self, workers: int, stacks: float) -> MemoryEstimate:
        """Estimate the memory of the models; what the app takes is not known."""
        size = int((stacks + 1) * workers * self.layout.model_bytes)
        return MemoryEstimate(((f"models ({workers} workers)", size),))

    def measure_batch_s(self, repeats: int = 100) -> float:
        """Refuse: how long an app trains is not a number of mini-batches."""
        raise ConfigError(
            "world.compute.batch_s = 'measure' times mini-batches, which a Flower app does not "
            "have; give seconds"
        )


def is_flower(name: str) -> bool:
    """Return whether a model is a Flower app."""
    return name.startswith(PREFIX)


def _kinds(arrays: list[Array]) -> list[str]:
    return [array.dtype.kind for array in arrays]


def _known(value: float | None) -> float:
    return float("nan") if value is None else float(value)
