"""`Simulation`: an experiment in Python, which runs while it is iterated."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dystop.config import Experiment, to_toml, to_tree
from dystop.data.dataset import Dataset
from dystop.data.importing import save_data
from dystop.folders.run_folder import (
    check_free,
    create_run,
    first_info,
    removed_if_unused,
)
from dystop.folders.trained_models import loaded_models
from dystop.record import RoundRecord
from dystop.recorders.recorder import Recorder
from dystop.runs.building import build, load_data
from dystop.runs.callbacks import Callback, Evaluation
from dystop.runs.results import Run
from dystop.runs.run import store_run
from dystop.simulator import no_round, run_rounds
from dystop.simulator.round import begin
from dystop.simulator.state import State
from dystop.training.models.build import CustomModel
from dystop.training.saved import LoadedModel, ModelCard
from dystop.training.tasks.task import Task

DATA = "data.npz"  # file in a run folder: a data set that was given as an object


class Simulation:
    """A simulation that trains while it is iterated; each item is one `RoundRecord`."""

    def __init__(
        self,
        experiment: Experiment,
        data: Dataset | None = None,
        model: CustomModel | None = None,
        task: Task | None = None,
        callbacks: Sequence[Callback] = (),
        recorders: Sequence[Recorder] = (),
    ) -> None:
        """Load the data and build the model; `simulate` explains the arguments."""
        built, self._recorders = build(experiment, data, model, task), tuple(recorders)
        every = (*built.components.recorders, *recorders)
        self._built = replace(built, components=replace(built.components, recorders=every))
        self._data, self._model, self._callbacks = data, model, tuple(callbacks)
        self.records: list[RoundRecord] = []
        self.stop_reason = ""  # why a callback has ended the run; empty: none has
        self._end: State | None = None  # after the last round
        self._wall_s = 0.0
        self._test_data: Dataset | None = None  # loaded for callbacks that look at it

    @property
    def experiment(self) -> Experiment:
        """The full configuration."""
        return self._built.experiment

    @property
    def physics(self) -> dict[str, str]:
        """A description of the simulated world."""
        return self._built.physics

    def __iter__(self) -> Iterator[RoundRecord]:
        """Run the simulation from its first round; iterating again repeats it."""
        self.records, self.stop_reason, self._end = [], "", None
        began_s = time.perf_counter()
        for callback in self._callbacks:
            callback.on_start(self)
        try:
            yield from self._rounds()
        finally:
            self._wall_s = time.perf_counter() - began_s
            for callback in self._callbacks:
                callback.on_end(self)

    def _rounds(self) -> Iterator[RoundRecord]:
        components = self._built.components
        state = begin(components)
        for record, after in run_rounds(components, state, self._needs_models):
            self.records.append(record)
            state = after
            for callback in self._callbacks:
                callback.on_round(record)
            if record.accuracy is not None and self._look_at_models:
                self.stop_reason = self._evaluated(record, state)
            if self.stop_reason:
                self._end = state
                yield record
                return
            yield record
        self._end = state

    def _needs_models(self, t: int) -> bool:
        """Return whether callbacks may look at the models after round t: where tests are due."""
        evaluate = self.experiment.evaluate
        if not self._look_at_models:
            return no_round(t)
        return evaluate.every_s > 0 or t % evaluate.every_rounds == 0

    @property
    def _look_at_models(self) -> bool:
        """Whether a callback handles tests."""
        return any(type(c).on_evaluation is not Callback.on_evaluation for c in self._callbacks)

    def _evaluated(self, record: RoundRecord, state: State) -> str:
        """Tell the callbacks about a test; return why one of them ends the run, or nothing."""
        components = self._built.components
        load = loaded_models(components, state, self._card, self._model)
        workers, task = components.fleet.workers, components.trainer.task
        evaluation = Evaluation(record, workers, load, self._loaded_data, task)
        for callback in self._callbacks:
            callback.on_evaluation(evaluation)
        return evaluation.stop_reason

    def _loaded_data(self) -> Dataset:
        """Return the data set with the limits of the experiment; it is loaded once."""
        if self._test_data is None:
            self._test_data = load_data(self.experiment, self._data)
        return self._test_data

    def run(self) -> Run:
        """Run all rounds and return the records."""
        records = tuple(self)
        return Run(self.experiment.name, to_tree(self.experiment), records, self.stop_reason)

    def model(self, worker: int | None = None) -> LoadedModel:
        """Return the trained global model, or the model of one worker, after the last round."""
        return loaded_models(self._built.components, self._ended(), self._card, self._model)(worker)

    @property
    def _card(self) -> ModelCard:
        if self._built.card is None:
            raise ValueError("planning only: engine.train is false, so there is no model")
        return self._built.card

    def _ended(self) -> State:
        if self._end is None:
            raise ValueError("the simulation has rounds left: call run(), or iterate to the end")
        return self._end

    def save(self, folder: str | Path) -> Path:
        """Write the run folder of a simulation that has ended, as `dystop run` writes it.

        It holds the records, a checkpoint and the trained models. If a callback has ended the run,
        `dystop resume` goes on with it. A data set that was given as an object is saved as well.

        Raises:
            RunFolderError: The folder exists.
            ValueError: The simulation has rounds left, or recorders that are not in the
                configuration: the run could not be resumed.
        """
        if self._recorders:
            raise ValueError("a simulation with recorders of its own cannot be saved")
        state, path = self._ended(), Path(folder)
        check_free(path.parent, path.name)
        experiment = replace(self.experiment, name=path.name)
        if self._data is not None:
            data = replace(experiment.data, name=str(path / DATA))
            experiment = replace(experiment, data=data)
        create_run(
            path.parent,
            path.name,
            to_toml(experiment),
            first_info(experiment),
            self._built.fleet,
            explicit=True,
        )
        with removed_if_unused(path):
            if self._data is not None:
                save_data(self._data, path / DATA)
            store_run(path, self._built, self.records, state, self.stop_reason, self._wall_s)
        return path
