"""What a worker serves: its models, or what an attacker sends in their place."""

import threading
from dataclasses import replace
from functools import partial

import numpy as np

from dystop.exchange.attacks import Attackers, Knowledge
from dystop.testbed.events import Publication, PullFinished, StartPull, Vector


class Outgoing:
    """Serves every model as it is."""

    def learn(self, seen: object) -> None:
        """Take note of an event or action of the worker."""

    def served(self, model: Publication) -> Publication:
        """Return what is served in place of a publication."""
        return model


class AttackerModels(Outgoing):
    """Changes the models that one worker serves, to rehearse an attack. Safe for several threads.

    It knows what a real attacker would know: its own model, the newest model that it has pulled
    from each neighbour, and who attacks as well.
    """

    def __init__(self, attackers: Attackers, node: int, first: Vector) -> None:
        """Prepare the attack of a node; `first` is the initial model of the run."""
        self._attackers, self._node, self._first = attackers, node, first
        self._accomplices = frozenset(attackers.nodes.tolist())
        self._nodes: dict[int, int] = {}  # of running pulls, by key
        self._pulled: dict[int, Vector] = {}  # newest model by node
        self._lock = threading.Lock()

    def learn(self, seen: object) -> None:
        """Remember whom a pull asks, and the model that it brings; ignore everything else."""
        with self._lock:
            if isinstance(seen, StartPull):
                self._nodes[seen.key] = seen.node
            elif isinstance(seen, PullFinished):
                node = self._nodes.pop(seen.key, self._node)
                if node not in self._accomplices and len(seen.vector) == len(self._first):
                    self._pulled[node] = seen.vector

    def served(self, model: Publication) -> Publication:
        """Return what is served in place of a publication."""
        with self._lock:
            others = np.stack([model.vector, *self._pulled.values()])
        noise = partial(self._attackers.noise, self._node, model.version, len(model.vector))
        known = Knowledge(model.vector, self._first, others, noise)
        vector = np.asarray(self._attackers.attack.sent(known), np.float32)
        return replace(model, vector=vector)


def outgoing_of(attackers: Attackers | None, node: int, first: Vector) -> Outgoing:
    """Return what a node serves; `first` is the initial model of the run."""
    if attackers is None or attackers.attack.flips_labels or node not in attackers.nodes:
        return Outgoing()
    return AttackerModels(attackers, node, first)
