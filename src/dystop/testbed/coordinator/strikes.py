"""Strikes against those whose models were refused, and when they lead to quarantine.

A receiver says why it has refused a model. One receiver alone cannot shut anybody out: its word
only stops its own link. Quarantine takes `strikes` refused models in `window_s` seconds from at
least `reporters` different workers. What the coordinator has seen itself needs no second witness.
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import (
    RejectCode,
)

BAD: frozenset[RejectCode] = frozenset(
    {"schema", "size", "digest", "not_finite", "norm", "distance", "variance", "replay",
     "malformed"}
)  # fmt: skip
WITNESS = -1  # the coordinator as a reporter
KEPT = 256  # strikes remembered per accused; a flood of them must not take memory

Verdict = Literal["", "strike", "quarantine"]


class Strike(NamedTuple):
    """A model was refused as bad."""

    reporter: int
    accused: int
    at_s: float


class Strikes:
    """Strikes of the last `window_s` seconds, by accused."""

    def __init__(self, guards: Guards, strikes: Iterable[Strike] = ()) -> None:
        self._guards = guards
        self._against: dict[int, deque[Strike]] = {}
        for strike in strikes:
            self._add(strike)

    def refused(self, reporter: int, accused: int, code: RejectCode, at_s: float) -> Verdict:
        """A receiver refused a model; says what follows for the sender.

        >>> trust = Strikes(Guards(strikes=3, reporters=2))
        >>> [trust.refused(i, 9, "norm", 0.0) for i in (1, 1, 1, 2)]
        ['strike', 'strike', 'strike', 'quarantine']
        """
        if code not in BAD:
            return ""
        recent = [s for s in self._recent(reporter, accused, at_s) if s.reporter != WITNESS]
        enough = len(recent) >= self._guards.strikes
        several = len({s.reporter for s in recent}) >= self._guards.reporters
        return "quarantine" if enough and several else "strike"

    def lied(self, accused: int, at_s: float) -> Verdict:
        """The coordinator itself has caught somebody at a lie; says what follows.

        >>> trust = Strikes(Guards(strikes=3))
        >>> [trust.lied(9, at_s) for at_s in (0.0, 1.0, 2.0)]
        ['strike', 'strike', 'quarantine']
        """
        lies = [s for s in self._recent(WITNESS, accused, at_s) if s.reporter == WITNESS]
        return "quarantine" if len(lies) >= self._guards.strikes else "strike"

    def _recent(self, reporter: int, accused: int, at_s: float) -> list[Strike]:
        """One more strike, and all that still count."""
        self._add(Strike(reporter, accused, at_s))
        recent = [s for s in self._against[accused] if at_s - s.at_s <= self._guards.window_s]
        self._against[accused] = deque(recent, maxlen=KEPT)
        return recent

    def forgive(self, accused: int) -> None:
        """Forget all strikes against somebody."""
        self._against.pop(accused, None)

    def strikes(self) -> list[Strike]:
        """All that is remembered, for the ledger."""
        return [s for against in self._against.values() for s in against]

    def _add(self, strike: Strike) -> None:
        against = self._against.setdefault(strike.accused, deque(maxlen=KEPT))
        if sum(s.reporter == strike.reporter for s in against) >= KEPT // 2:
            against.remove(next(s for s in against if s.reporter == strike.reporter))
        against.append(strike)
