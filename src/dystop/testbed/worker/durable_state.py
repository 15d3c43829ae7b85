"""The worker's state, its saves, and the models and reports that must stay consistent with it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dystop.testbed.events import (
    Publication,
    SaveCheckpoint,
    SendToCoordinator,
    StartTraining,
    TrainingFailed,
    TrainingFinished,
    Vector,
    WorkerAction,
)
from dystop.testbed.protocol.messages import MAX_REAL, Report
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.published_models import PublishedModel, PublishedModels
from dystop.testbed.worker.session import Session
from dystop.testbed.worker.state import (
    VERSION_GAP,
    RunningTraining,
    WorkerSetup,
    WorkerState,
    training_failed,
    training_finished,
    training_started,
    with_report,
)

RETRY_SAVE_S = 5.0  # pause after the disk refused a save


class DurableState:
    """The current state, and everything that must stay consistent with it."""

    def __init__(self, setup: WorkerSetup, state: WorkerState, guard: Guard) -> None:
        """Publish the model of the checkpoint."""
        self.setup, self.guard = setup, guard
        # An earlier process may have served snapshots whose versions are not on disk.
        self._last_version = state.version + (VERSION_GAP if state.run else 0)
        self.state = state
        self.now_s = 0.0
        self.session = Session(setup.params.timeouts.report_s, setup.params.timeouts.heartbeat_s)
        self.published = PublishedModels(per_peer=setup.params.limits.pulls_per_peer)
        self.disk_full = False
        self._undo: WorkerState | None = None
        self._retry_save_s = 0.0
        self._is_saving = False
        self._settled_version = state.version  # newest one when the last save ended, well or not
        self.publish(self.state.version, self.state.round)

    # Models ------------------------------------------------------------------------------------

    def next_version(self) -> int:
        """Return a version that was never used."""
        self._last_version += 1
        return self._last_version

    def publishable(
        self, vector: Vector, version: int, since: int, start: Vector | None
    ) -> PublishedModel:
        """Return a model, based on the last finished training, in the form that is served."""
        publication = Publication(version, self.state.number, self.state.round, vector)
        return PublishedModel(publication, since, start)

    def publish(self, version: int, since: int) -> None:
        """Serve the published model of the state from now on."""
        state = self.state
        self.guard.learn(state.published)
        self.published.publish(
            self.publishable(state.published, version, since, state.models.published_start)
        )

    # Saving ------------------------------------------------------------------------------------

    def save(
        self, *after_save: WorkerAction, undo: WorkerState | None = None
    ) -> list[WorkerAction]:
        """Save the state; `undo` is restored if the disk refuses."""
        self._undo = self._undo or undo
        self._is_saving = True
        return [SaveCheckpoint(self.state, after_save)]

    def save_succeeded(self) -> None:
        """Register that the last save is on disk."""
        self.disk_full, self._undo = False, None
        self._save_ended()

    def save_failed(self) -> WorkerState | None:
        """Register a refused save; return the state that was restored, if one had to be."""
        undo, self._undo = self._undo, None
        self.disk_full, self._retry_save_s = True, self.now_s + RETRY_SAVE_S
        if undo is not None:
            self.state = undo
            self.published.retract_after(undo.version)
        self._save_ended()
        return undo

    def _save_ended(self) -> None:
        self._is_saving, self._settled_version = False, self.state.version

    def must_be_saved_first(self, request: PullRequest) -> bool:
        """Return whether a pull gets a publication that the running save writes for the first time.

        Snapshots for exact pulls do not wait: peers may get them before the exchange is saved.
        """
        if not self._is_saving or request.exact:
            return False
        model = self.published.find(request)
        return model is not None and model.publication.version > self._settled_version

    def retry_save(self) -> list[WorkerAction]:
        """Save again after a pause if the disk refused the last save."""
        if not self.disk_full or self.now_s < self._retry_save_s:
            return []
        return self.save()

    # Reports -----------------------------------------------------------------------------------

    @property
    def sendable_reports(self) -> tuple[Report, ...]:
        """Reports that may be sent; while the disk is full, only those of failed orders."""
        if not self.disk_full:
            return self.state.reports
        return tuple(r for r in self.state.reports if r.kind == "failed")

    def add_report(self, report: Report) -> list[SendToCoordinator]:
        """Keep a report until it is acknowledged; return the message for after the save."""
        state = self.state
        report = replace(
            report,
            version=state.version,
            number=state.number,
            digest=self.setup.digest(state.published),
            text=report.text[:200],
        )
        self.state = with_report(state, report)
        return self.session.first_report(report, self.now_s)

    # Local training ----------------------------------------------------------------------------

    def resume_training(self) -> list[WorkerAction]:
        """Repeat the training of an earlier process: same model, number and steps."""
        state, published = self.state, self.published
        if state.training is None:
            return []
        published.open_round(state.training.round)
        if state.shift is None:  # otherwise the model before the exchange is lost
            published.add_snapshot(0, published.models[-1])
        version, round_ = self.next_version(), state.training.round
        after = self.publishable(state.models.latest, version, round_, state.models.published_start)
        published.add_snapshot(max(state.training.stages, 1), after, last=True)
        return [self.start_training(state.training)]

    def start_first_training(self) -> list[WorkerAction]:
        """Start the training that every worker runs at the start of a run (warm start)."""
        before, steps = self.state, self.setup.first_steps
        training = RunningTraining(number=0, round=0, steps=steps, rate=1.0, stages=0)
        models = before.models
        self.state = training_started(before, models.latest, models.counters, training)
        return self.save(self.start_training(training), undo=before)

    def start_training(self, training: RunningTraining) -> StartTraining:
        """Return the action that starts a training at the mixed model."""
        models, number = self.state.models, training.number
        return StartTraining(number, models.latest, models.counters, training.steps, training.rate)

    def end_training(self, event: TrainingFinished | TrainingFailed) -> Report | None:
        """Publish the result of a training, or keep the old model; return the report.

        None: the event belongs to no running training.
        """
        training = self.state.training
        if training is None or event.number != training.number:
            return None
        if isinstance(event, TrainingFailed):
            return self._discard_training(training, event.text)
        if not np.isfinite(event.vector).all():
            return self._discard_training(training, "the trained model is not finite")
        return self._publish_training(training, event)

    def _publish_training(self, training: RunningTraining, event: TrainingFinished) -> Report:
        # The result contains passive mixes of later rounds; those rounds must not pull it.
        since = training.round if self.state.shift is None else self.state.last_round
        version = self.next_version()
        self.state = training_finished(self.state, event.vector, event.counters, version)
        self.publish(version, since)
        return Report(
            training.round,
            "trained",
            seconds=max(event.seconds, 0.0),
            steps=training.steps,
            samples=event.samples,
            loss=finite_or_none(event.loss),
        )

    def _discard_training(self, training: RunningTraining, text: str) -> Report:
        self.state = training_failed(self.state)
        return Report(training.round, "trained", steps=training.steps, text=text)


def finite_or_none(loss: float | None) -> float | None:
    """Return a loss that a message can hold.

    >>> finite_or_none(float("nan")), finite_or_none(0.5)
    (None, 0.5)
    """
    return loss if loss is not None and abs(loss) <= MAX_REAL else None


def with_one_save(actions: Sequence[WorkerAction]) -> list[WorkerAction]:
    """Merge all saves into the last one, which then carries the actions that waited for any.

    One event can end a training and complete the order that waited for it. Both save the state.
    """
    saves = [a for a in actions if isinstance(a, SaveCheckpoint)]
    if len(saves) < 2:
        return list(actions)
    last = saves[-1]
    merged = SaveCheckpoint(last.state, tuple(act for save in saves for act in save.after_save))
    others = [a for a in actions if not isinstance(a, SaveCheckpoint) or a is last]
    return [merged if a is last else a for a in others]
