"""Poisoned models: 3 attackers among 15 workers, under several rules (B-1, B-2, B-3, B-4).

All parties are threads of this process over the memory transport; everything else is as in a real
run. The result is the mean accuracy of the honest workers' models at the end.
"""

from dataclasses import replace

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.testbed.audit.check import check_run
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.threads import PartyThreads, run_threads
from dystop.testbed.worker.model_server import PublishedModelServer
from support.testbed.ignored_progress import IgnoredProgress

from .facts import accuracy_of

pytestmark = pytest.mark.chaos

NODES = (2, 7, 12)
BAD = ("w02", "w07", "w12")
KEYS = (
    "fleet.workers=15", "data.name=synthetic", "data.options.train=6000",
    "data.options.noise=0.3", "training.learning_rate=0.2", "model.name=softmax",
    "world.range_m=200", "mechanism.neighbours=3",
    "stop.rounds=300", "testbed.transport=memory", "testbed.links=free", "testbed.devices=free",
    "testbed.observer=false",
)  # fmt: skip


@pytest.fixture
def scaled_models(monkeypatch):
    """Return a function that makes three workers serve nine times their models."""

    def start() -> None:
        push, make_worker = PublishedModelServer._push, PartyThreads._worker

        def make_attacker(parties, name, stack):
            worker = make_worker(parties, name, stack)
            worker._model_server.scales = name in BAD
            return worker

        def push_scaled(server, future, request, model):
            if getattr(server, "scales", False):
                model = replace(model, vector=np.float32(9) * model.vector)
            push(server, future, request, model)

        monkeypatch.setattr(PublishedModelServer, "_push", push_scaled)
        monkeypatch.setattr(PartyThreads, "_worker", make_attacker)

    return start


def honest_accuracy(folder, rule, kind="none", *words, bad=BAD):
    """Return the mean accuracy of the honest workers after a run."""
    keys = [
        *KEYS,
        f"aggregation.rule={rule}",
        f"adversary.kind={kind}",
        *([] if kind == "none" else [f"adversary.workers={list(NODES)}"]),
        *words,
    ]
    run, _ = make_folder(read_experiment(None, keys), folder, "run")
    run_threads(run, IgnoredProgress())
    assert check_run(run) == []
    return accuracy_of(run, bad)["end_local"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Return the accuracy of three rules without an attack."""
    return {
        rule: honest_accuracy(tmp_path_factory.mktemp("clean"), rule, bad=())
        for rule in ("mean", "clip", "agree")
    }


@pytest.mark.parametrize("rule", ["clip", "agree"])
def test_robust_rules_cost_little_without_an_attack(clean, show, rule):
    """B-1: a robust rule costs at most 0.03 of accuracy without an attack."""
    show(f"mean {clean['mean']:.3f}, {rule} {clean[rule]:.3f}")
    assert clean[rule] >= clean["mean"] - 0.03


WITHIN = {"flip": 0.06, "noise": 0.06, "times ten": 0.06, "replay": 0.10, "label-flip": 0.04}


@pytest.mark.parametrize(("attack", "within"), WITHIN.items(), ids=WITHIN)
def test_clipping_limits_the_damage(tmp_path_factory, show, clean, scaled_models, attack, within):
    """B-1, B-2 (b), B-3: honest workers reach nearly the accuracy of a run without an attack."""
    kind = attack
    if attack == "times ten":
        scaled_models()
        kind = "none"
    figures = {
        rule: honest_accuracy(tmp_path_factory.mktemp("run"), rule, kind)
        for rule in ("mean", "clip", "agree")
    }
    show(
        f"mean {figures['mean']:.3f}, clip {figures['clip']:.3f}, agree {figures['agree']:.3f}, "
        f"without an attack {clean['clip']:.3f}"
    )
    assert figures["clip"] >= clean["clip"] - within
    assert figures["agree"] >= clean["agree"] - within


@pytest.mark.parametrize(("kind", "strength", "gain"), [("ipm", 0.5, 0.05), ("alie", 4.0, 0.01)])
def test_agree_holds_against_collusion(tmp_path_factory, show, clean, kind, strength, gain):
    """B-4: attackers who know the models of their neighbours and stay inconspicuous."""
    word = f"adversary.options.strength={strength}"
    figures = {
        rule: honest_accuracy(tmp_path_factory.mktemp("run"), rule, kind, word)
        for rule in ("mean", "clip", "nearest", "agree")
    }
    show(", ".join(f"{rule} {x:.3f}" for rule, x in figures.items()) +
         f", without an attack {clean['mean']:.3f}")  # fmt: skip
    assert figures["agree"] >= clean["agree"] - 0.05
    assert figures["agree"] >= figures["mean"] + gain
