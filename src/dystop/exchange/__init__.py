"""What a link carries, and how a worker combines what arrives, for simulator and testbed alike.

rules        aggregation rules: mean, clip, agree, nearest, trimmed, median
codecs       what a link carries: topk, randomk, int8, sign; or whole models
attacks      workers that send other vectors than their models, or learn wrong labels
"""

from dataclasses import dataclass, field

from dystop.exchange.attacks import Attackers
from dystop.exchange.codecs import Codec
from dystop.exchange.rules import Mean, Rule
from dystop.sparse import Ints, ints


@dataclass(frozen=True)
class Exchange:
    """The parts that change what workers send and how they mix it."""

    rule: Rule = field(default_factory=Mean)
    attackers: Attackers | None = None  # None: everybody is honest
    codec: Codec | None = None  # None: links carry whole models

    @property
    def dishonest(self) -> Ints:
        """The workers whose models do not count in scores, ascending."""
        return ints([]) if self.attackers is None else self.attackers.nodes
