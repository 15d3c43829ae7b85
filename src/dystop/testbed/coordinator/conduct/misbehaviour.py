"""Count the misbehaviour of members: refused models (strikes) and messages per second.

A receiver reports why it refused a model. The report of one receiver only stops its own link.
`strikes` refused models within `window_s` seconds, reported by at least `reporters` different
workers, are a suspicion: the observer then checks the newest of these models
(`coordinator.accusations`). Nobody is excluded by reports alone.

The reports of a receiver do not count while it accuses more than half of the other nodes, or
after the observer has accepted `strikes` of the models that it refused. What the coordinator
observes itself needs no second reporter.
"""

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from dystop.testbed.params import Guards, Limits
from dystop.testbed.protocol.messages import RejectCode

# Reasons that the observer can check. A distance or a replay depends on what a receiver got before.
STRIKE_CODES: frozenset[RejectCode] = frozenset(
    {"schema", "size", "digest", "not_finite", "norm", "variance", "malformed"}
)
# Those that follow from the digest alone. The rest may have been true for one receiver only.
REPEATABLE_CODES: frozenset[RejectCode] = frozenset({"not_finite", "norm", "variance"})
COORDINATOR = -1  # the coordinator as a reporter
MAX_STRIKES = 256  # remembered per accused member, and refuted ones per reporter
BURST_S = 5.0  # a member may send the messages of this many seconds at once
MESSAGES_PER_ORDER = 4.0  # extra messages that an order or a join allows

Consequence = Literal["", "strike", "suspicion", "quarantine"]


class Strike(NamedTuple):
    """One refused model, or one false claim."""

    reporter: int
    accused: int
    at_s: float


class Strikes:
    """Strikes of the last `window_s` seconds, by accused member, and those that were refuted."""

    def __init__(
        self,
        guards: Guards,
        nodes: int,
        strikes: Iterable[Strike] = (),
        refuted: Iterable[Strike] = (),
    ) -> None:
        self._guards, self._nodes = guards, nodes
        self._against: dict[int, deque[Strike]] = {}
        self._refuted: dict[int, deque[Strike]] = {}  # by reporter
        self._unserved: dict[int, deque[Strike]] = {}  # by accused; not kept over a restart
        for strike in strikes:
            self._add(strike)
        for strike in refuted:
            self._add_refuted(strike)

    def model_refused(
        self, reporter: int, accused: int, code: RejectCode, at_s: float
    ) -> Consequence:
        """Register a refused model; return the consequence for its sender.

        >>> strikes = Strikes(Guards(strikes=3, reporters=2), nodes=10)
        >>> [strikes.model_refused(i, 9, "norm", 0.0) for i in (1, 1, 1, 2)]
        ['strike', 'strike', 'strike', 'suspicion']
        """
        if code not in STRIKE_CODES:
            return ""
        recent = [s for s in self._recent(reporter, accused, at_s) if s.reporter != COORDINATOR]
        reporters = {s.reporter for s in recent}
        credible = {r for r in reporters if self.is_credible(r, at_s)}
        enough = sum(s.reporter in credible for s in recent) >= self._guards.strikes
        several = len(credible) >= self._guards.reporters
        return "suspicion" if enough and several and reporter in credible else "strike"

    def is_credible(self, reporter: int, at_s: float) -> bool:
        """Return whether the reports of a member count.

        >>> strikes = Strikes(Guards(), nodes=5)
        >>> for accused in (1, 2, 3):
        ...     _ = strikes.model_refused(0, accused, "norm", 0.0)
        >>> strikes.is_credible(0, 0.0), strikes.is_credible(4, 0.0)
        (False, True)
        """
        few = 2 * len(self.accused_by(reporter, at_s)) <= self._nodes - 1
        return few and self.refuted_of(reporter, at_s) < self._guards.strikes

    def accused_by(self, reporter: int, at_s: float) -> set[int]:
        """Return the members whose models a member has refused within the window."""
        return {
            accused
            for accused, strikes in self._against.items()
            if any(s.reporter == reporter and self._counts(s, at_s) for s in strikes)
        }

    def refuted_of(self, reporter: int, at_s: float) -> int:
        """Return how many refusals of a member the observer has refuted within the window."""
        return sum(self._counts(s, at_s) for s in self._refuted.get(reporter, ()))

    def refuted(self, reporter: int, accused: int, at_s: float) -> None:
        """Withdraw the strikes of a reporter against a member whose model the observer accepted."""
        self._add_refuted(Strike(reporter, accused, at_s))
        left = [s for s in self._against.get(accused, ()) if s.reporter != reporter]
        self._against[accused] = deque(left, maxlen=MAX_STRIKES)

    def not_served(self, reporter: int, accused: int, at_s: float) -> Consequence:
        """Register that a sender could not repeat what it had just sent to a receiver.

        The receiver alone says what that was. The consequence follows when more than half of the
        other nodes have said so.

        >>> strikes = Strikes(Guards(), nodes=5)
        >>> [strikes.not_served(i, 4, 0.0) for i in (0, 0, 1, 2)]
        ['strike', 'strike', 'strike', 'quarantine']
        """
        unserved = self._unserved.setdefault(accused, deque(maxlen=MAX_STRIKES))
        unserved.append(Strike(reporter, accused, at_s))
        reporters = {s.reporter for s in unserved if self._counts(s, at_s)}
        credible = sum(self.is_credible(r, at_s) for r in reporters)
        enough = credible >= self._guards.reporters and 2 * credible > self._nodes - 1
        return "quarantine" if enough else "strike"

    def false_claim(self, accused: int, at_s: float) -> Consequence:
        """Register a false claim that the coordinator detected; return its consequence.

        >>> strikes = Strikes(Guards(strikes=3), nodes=10)
        >>> [strikes.false_claim(9, at_s) for at_s in (0.0, 1.0, 2.0)]
        ['strike', 'strike', 'quarantine']
        """
        claims = [s for s in self._recent(COORDINATOR, accused, at_s) if s.reporter == COORDINATOR]
        return "quarantine" if len(claims) >= self._guards.strikes else "strike"

    def _recent(self, reporter: int, accused: int, at_s: float) -> list[Strike]:
        """Add a strike; return all strikes against the accused that still count."""
        self._add(Strike(reporter, accused, at_s))
        recent = [s for s in self._against[accused] if self._counts(s, at_s)]
        self._against[accused] = deque(recent, maxlen=MAX_STRIKES)
        return recent

    def _counts(self, strike: Strike, at_s: float) -> bool:
        return at_s - strike.at_s <= self._guards.window_s

    def clear(self, accused: int) -> None:
        """Forget all strikes against a member."""
        self._against.pop(accused, None)
        self._unserved.pop(accused, None)

    def all(self) -> list[Strike]:
        """Return all remembered strikes, for the ledger."""
        return [s for against in self._against.values() for s in against]

    def all_refuted(self) -> list[Strike]:
        """Return all remembered strikes that were refuted, for the ledger."""
        return [s for by in self._refuted.values() for s in by]

    def _add_refuted(self, strike: Strike) -> None:
        self._refuted.setdefault(strike.reporter, deque(maxlen=MAX_STRIKES)).append(strike)

    def _add(self, strike: Strike) -> None:
        """Add a strike; one reporter may hold at most half of the remembered ones."""
        against = self._against.setdefault(strike.accused, deque(maxlen=MAX_STRIKES))
        if sum(s.reporter == strike.reporter for s in against) >= MAX_STRIKES // 2:
            against.remove(next(s for s in against if s.reporter == strike.reporter))
        against.append(strike)


class RateLimit:
    """Token bucket of each member; orders and joins add tokens."""

    def __init__(self, limits: Limits) -> None:
        self._rate = float(limits.messages_per_s)
        self._tokens: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def take(self, name: str, at_s: float) -> bool:
        """Take a token for one message; return whether there was one."""
        tokens, counted_s = self._tokens.get(name, (BURST_S * self._rate, at_s))
        tokens = min(BURST_S * self._rate, tokens + (at_s - counted_s) * self._rate)
        self._tokens[name] = (max(tokens - 1.0, 0.0), at_s)
        return tokens >= 1.0

    def grant(self, name: str) -> None:
        """Add tokens for the messages that an order or a join causes."""
        tokens, counted_s = self._tokens.get(name, (BURST_S * self._rate, 0.0))
        self._tokens[name] = (min(tokens + MESSAGES_PER_ORDER, BURST_S * self._rate), counted_s)
