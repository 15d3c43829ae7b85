"""What a link carries, and how a worker combines what arrives, for simulator and testbed alike.

rules        aggregation rules: mean, clip, agree, nearest, trimmed, median
"""

from dataclasses import dataclass, field

from dystop.exchange.rules import Mean, Rule


@dataclass(frozen=True)
class Exchange:
    """The parts that change what workers send and how they mix it; each has a neutral form."""

    rule: Rule = field(default_factory=Mean)
