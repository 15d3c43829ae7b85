"""What the attackers of a simulation send to those who ask for their models."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dystop.simulator.model_stack import Models, published
from dystop.sparse import Bools, Ints, ints
from dystop.world.adversary import Adversary, Knowledge, noise_of, sent_vector


@dataclass(frozen=True)
class Attackers:
    """The attackers of a run. They know the models of all honest workers."""

    adversary: Adversary
    nodes: Ints  # ascending
    workers: int
    seed: int
    first: Tensor  # the initial model, [W]

    @property
    def honest(self) -> Ints:
        """The workers that do not attack, ascending."""
        attacking = set(self.nodes.tolist())
        return ints([k for k in range(self.workers) if k not in attacking])

    def sent(self, models: Models, done: Bools, t: int) -> Mapping[int, Tensor]:
        """Return what each attacker hands out in round t in place of its model, [W] each."""
        if not self.adversary.sends_others:
            return {}
        stack = published(models, done)
        others = stack[torch.from_numpy(self.honest).to(stack.device)]
        return {k: self._sent_by(k, stack[k], others, t) for k in self.nodes.tolist()}

    def _sent_by(self, node: int, own: Tensor, others: Tensor, t: int) -> Tensor:
        noise = None
        if self.adversary.kind == "noise":
            noise = torch.from_numpy(noise_of(self.seed, node, t, len(own))).to(own)
        known = Knowledge(own, self.first, others, noise)
        vector: Tensor = sent_vector(self.adversary, known)
        return vector
