"""A worker that attacks: it serves other vectors than its models, to rehearse an attack.

It knows what a real attacker would know: its own model, the newest model that it has pulled from
each neighbour, and who attacks as well.
"""

import threading
from dataclasses import replace

import numpy as np

from dystop.sparse import Ints
from dystop.testbed.events import Publication, PullFinished, StartPull, Vector
from dystop.world.adversary import Adversary, Knowledge, noise_of, sent_vector


class Attacker:
    """Changes the models that one worker serves. Safe for several threads."""

    def __init__(
        self, adversary: Adversary, node: int, accomplices: Ints, seed: int, first: Vector
    ) -> None:
        """Prepare the attack.

        Args:
            adversary: The kind of attack.
            node: The attacking worker.
            accomplices: All attacking workers; their models are not taken for honest ones.
            seed: Seed of the run, for noise.
            first: The initial model of the run.
        """
        self._adversary, self._node, self._seed, self._first = adversary, node, seed, first
        self._accomplices = frozenset(accomplices.tolist())
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
        noise = None
        if self._adversary.kind == "noise":
            noise = noise_of(self._seed, self._node, model.version, len(model.vector))
        known = Knowledge(model.vector, self._first, others, noise)
        vector = np.asarray(sent_vector(self._adversary, known), np.float32)
        return replace(model, vector=vector)
