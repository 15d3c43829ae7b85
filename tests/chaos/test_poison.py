"""Members whose models are well-formed and wrong: 3 of 15, under mean and clip (B-1, B-2, B-3).

All parties are threads of this process over the memory transport; everything else is as in a real
run. The figure is the mean accuracy of the honest workers' models at the end.
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


class Silent:
    """Nobody follows."""

    def on_start(self, started):
        pass

    def on_restart(self, told):
        pass

    def on_joining(self, joined, workers):
        pass

    def on_record(self, record):
        pass


def noisy(vector, dice):
    """Noise three times as long as the model."""
    noise = dice.standard_normal(len(vector))
    return vector + 3 * np.linalg.norm(vector) / np.linalg.norm(noise) * noise


ATTACKS = {
    "none": None,
    "sign flip": lambda vector, first, dice: -vector,
    "noise": lambda vector, first, dice: noisy(vector, dice),
    "times ten": lambda vector, first, dice: 9 * vector,
    "replay": lambda vector, first, dice: first,
    "label flip": None,
}


@pytest.fixture
def villains(monkeypatch):
    """Make three workers serve something else than their model, or learn wrong labels."""

    def choose(attack: str) -> None:
        push, make, cut = PublishedModelServer._push, PartyThreads._worker, parts._cut
        flipping, spoil = threading.local(), ATTACKS[attack]

        def made(company, name, stack):
            bad = name in BAD
            flipping.on = bad and attack == "label flip"
            party = make(company, name, stack)
            if bad and spoil:
                party._shelf.first = party.parts.initial[0]
            return party

        def pushed(shelf, future, request, model):
            if (first := getattr(shelf, "first", None)) is not None:
                dice = stream(model.version, "attack", id(shelf))
                vector = np.asarray(spoil(model.vector, first, dice), np.float32)
                model = replace(model, vector=vector)
            push(shelf, future, request, model)

        def cut_flipped(data, own):
            mine = cut(data, own)
            if not getattr(flipping, "on", False):
                return mine
            return replace(mine, y_train=data.classes - 1 - mine.y_train)

        monkeypatch.setattr(PublishedModelServer, "_push", pushed)
        monkeypatch.setattr(PartyThreads, "_worker", made)
        monkeypatch.setattr(parts, "_cut", cut_flipped)

    return choose


def honest(folder, attack, aggregator):
    """Mean accuracy of the honest workers after a run."""
    keys = [*KEYS, f"testbed.guards.aggregator={aggregator}"]
    run, _ = make_folder(read_experiment(None, keys), folder, "run")
    run_threads(run, Silent())
    assert check_run(run) == []
    return accuracy_of(run, () if attack == "none" else BAD)["end_local"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """What both rules reach without an attack."""
    return {
        rule: honest(tmp_path_factory.mktemp("clean"), "none", rule) for rule in ("mean", "clip")
    }


def test_no_attack_no_cost(clean, tell):
    """B-1: clipping costs nothing worth mentioning where nobody attacks."""
    tell(f"mean {clean['mean']:.3f}, clip {clean['clip']:.3f}")
    assert clean["clip"] >= clean["mean"] - 0.03


WITHIN = {"sign flip": 0.06, "noise": 0.06, "times ten": 0.06, "replay": 0.10, "label flip": 0.04}


@pytest.mark.parametrize(("attack", "within"), WITHIN.items(), ids=WITHIN)
def test_clipping_holds(tmp_path_factory, tell, clean, villains, attack, within):
    """B-1, B-2 (b), B-3: honest workers stay near what they reach without an attack."""
    calm = clean["clip"]
    villains(attack)
    figures = {
        rule: honest(tmp_path_factory.mktemp("run"), attack, rule) for rule in ("mean", "clip")
    }
    tell(f"mean {figures['mean']:.3f}, clip {figures['clip']:.3f}, without an attack {calm:.3f}")
    assert figures["clip"] >= calm - within
