"""A study whose runs take a moment, and an engine that runs its jobs in this process."""

from pathlib import Path

from typer.testing import CliRunner

from dystop.cli import app
from dystop.studies.compare import Comparison, experiments
from dystop.studies.executors.executor import Ended
from dystop.studies.study import create_study

TINY = [
    "data.name=synthetic", "data.options.train=60", "data.options.test=20",
    "model.name=softmax", "fleet.workers=3", "stop.rounds=6", "evaluate.every_rounds=2",
    "output.checkpoint_every=2",
]  # fmt: skip


def tiny_study(folder: Path, seeds: int = 2, name: str = "x", words=()):
    """Create a study of one mechanism with some seeds."""
    every = experiments(Comparison(None, [*TINY, *words], ["dystop"], seeds=seeds))
    return create_study(folder, name, every)


def records(study) -> dict[str, bytes]:
    """The records of all published runs, by run."""
    return {p.parent.name: p.read_bytes() for p in Path(study).glob("[!.]*/records.jsonl")}


class Listener:
    """Notes what the driver says."""

    def __init__(self):
        self.started, self.finished, self.retried, self.rounds = [], [], [], []

    def on_wait(self, waiting):
        pass

    def on_start(self, run, rounds):
        self.started.append(run)

    def on_record(self, run, record):
        assert run in self.started
        self.rounds.append((run, record.round))

    def on_retry(self, run, reason):
        self.retried.append((run, reason))

    def on_finish(self, run):
        self.finished.append(run)


class FakeJob:
    """A job that waits at first, then runs; what it does is up to the engine."""

    def __init__(self, engine, job):
        self.engine, self.job = engine, job
        self.handle = job.run
        self.ended = None
        self.polls = 0

    def state(self):
        return "running" if self.polls > 1 else "waiting"

    def poll(self):
        self.polls += 1
        if self.ended is None and self.polls > 1:
            self.ended = self.engine.carry_out(self.job)
        return self.ended

    def cancel(self):
        self.engine.cancelled.append(self.job.run)

    kill = cancel

    def close(self):
        pass


class FakeEngine:
    """An engine with a queue of its own, whose nodes are this process.

    `faults` holds, by run, one function per attempt; each may call `run` and returns an `Ended`.
    """

    name, capacity, retries, fenced, estimates_memory = "fake", None, 3, True, False

    def __init__(self, faults=None, known=()):
        self.faults = {run: list(each) for run, each in (faults or {}).items()}
        self.jobs, self.cancelled, self.known = [], [], set(known)

    def check(self, study, needs):
        pass

    def has_room(self, need):
        return True

    def submit(self, jobs):
        self.jobs += jobs
        return [FakeJob(self, job) for job in jobs]

    def find(self, job, handle):
        return FakeJob(self, job) if handle in self.known else None

    def carry_out(self, job):
        faults = self.faults.get(job.run)
        return faults.pop(0)(job) if faults else run(job)

    def close(self):
        pass


def run(job) -> Ended:
    """Do what a node does, in this process."""
    result = CliRunner().invoke(app, list(job.words))
    return Ended(result.exit_code, result.stderr.strip().removeprefix("Error: "))
