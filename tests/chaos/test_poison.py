"""Poisoned models: 3 attackers among 15 workers, under mean and clip (B-1, B-2, B-3).

All parties are threads of this process over the memory transport; everything else is as in a real
run. The result is the mean accuracy of the honest workers' models at the end.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest

from dystop.experiments.config import read_experiment
from dystop.experiments.testbed import parts
from dystop.experiments.testbed.launch import make_folder
from dystop.experiments.testbed.threads import PartyThreads, run_threads
from dystop.rng import stream
from dystop.testbed.audit.check import check_run
from dystop.testbed.worker.model_server import PublishedModelServer

from .facts import accuracy_of

pytestmark = pytest.mark.chaos

BAD = ("w02", "w07", "w12")
KEYS = (
    "fleet.workers=15", "data.name=synthetic", "data.synthetic.train=6000",
    "data.synthetic.noise=0.3", "training.learning_rate=0.2", "model.name=softmax",
    "world.range_m=200", "mechanism.neighbours=3",
    "stop.rounds=300", "testbed.transport=memory", "testbed.links=free", "testbed.devices=free",
    "testbed.observer=false",
)  # fmt: skip


class IgnoredProgress:
    """A progress reporter that does nothing."""

    def on_start(self, started):
        pass

    def on_restart(self, notice):
        pass

    def on_joining(self, joined, workers):
        pass

    def on_record(self, record):
        pass


def noisy(vector, rng):
    """Return the vector plus noise of three times its norm."""
    noise = rng.standard_normal(len(vector))
    return vector + 3 * np.linalg.norm(vector) / np.linalg.norm(noise) * noise


ATTACKS = {
    "none": None,
    "sign flip": lambda vector, first, rng: -vector,
    "noise": lambda vector, first, rng: noisy(vector, rng),
    "times ten": lambda vector, first, rng: 9 * vector,
    "replay": lambda vector, first, rng: first,
    "label flip": None,
}


@pytest.fixture
def attackers(monkeypatch):
    """Return a function that makes three workers serve wrong models or learn wrong labels."""

    def choose(attack: str) -> None:
        push, make_worker = PublishedModelServer._push, PartyThreads._worker
        only_own, flips_labels, change = parts._only_own, threading.local(), ATTACKS[attack]

        def make_attacker(parties, name, stack):
            bad = name in BAD
            flips_labels.on = bad and attack == "label flip"
            worker = make_worker(parties, name, stack)
            if bad and change:
                worker._model_server.initial = worker.components.initial[0]
            return worker

        def push_changed(server, future, request, model):
            if (initial := getattr(server, "initial", None)) is not None:
                rng = stream(model.version, "attack", id(server))
                vector = np.asarray(change(model.vector, initial, rng), np.float32)
                model = replace(model, vector=vector)
            push(server, future, request, model)

        def with_flipped_labels(data, own):
            samples = only_own(data, own)
            if not getattr(flips_labels, "on", False):
                return samples
            return replace(samples, y_train=data.classes - 1 - samples.y_train)

        monkeypatch.setattr(PublishedModelServer, "_push", push_changed)
        monkeypatch.setattr(PartyThreads, "_worker", make_attacker)
        monkeypatch.setattr(parts, "_only_own", with_flipped_labels)

    return choose


def honest_accuracy(folder, attack, aggregator):
    """Return the mean accuracy of the honest workers after a run."""
    keys = [*KEYS, f"testbed.guards.aggregator={aggregator}"]
    run, _ = make_folder(read_experiment(None, keys), folder, "run")
    run_threads(run, IgnoredProgress())
    assert check_run(run) == []
    return accuracy_of(run, () if attack == "none" else BAD)["end_local"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Return the accuracy of both aggregators without an attack."""
    return {
        rule: honest_accuracy(tmp_path_factory.mktemp("clean"), "none", rule)
        for rule in ("mean", "clip")
    }


def test_clipping_costs_little_without_an_attack(clean, show):
    """B-1: clipping costs at most 0.03 of accuracy without an attack."""
    show(f"mean {clean['mean']:.3f}, clip {clean['clip']:.3f}")
    assert clean["clip"] >= clean["mean"] - 0.03


WITHIN = {"sign flip": 0.06, "noise": 0.06, "times ten": 0.06, "replay": 0.10, "label flip": 0.04}


@pytest.mark.parametrize(("attack", "within"), WITHIN.items(), ids=WITHIN)
def test_clipping_limits_the_damage(tmp_path_factory, show, clean, attackers, attack, within):
    """B-1, B-2 (b), B-3: honest workers reach nearly the accuracy of a run without an attack."""
    calm = clean["clip"]
    attackers(attack)
    figures = {
        rule: honest_accuracy(tmp_path_factory.mktemp("run"), attack, rule)
        for rule in ("mean", "clip")
    }
    show(f"mean {figures['mean']:.3f}, clip {figures['clip']:.3f}, without an attack {calm:.3f}")
    assert figures["clip"] >= calm - within
