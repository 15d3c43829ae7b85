"""How much a peer may say: no single one keeps the coordinator busy."""

from dystop.runtime.params import Limits

BURST = 5.0  # seconds' worth of messages that a peer may send at once
PER_ORDER = 4.0  # messages that an order entitles to


class Allowance:
    """How many messages each peer may still send; orders and joins entitle to more."""

    def __init__(self, limits: Limits) -> None:
        self._rate = float(limits.messages_per_s)
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, name: str, at_s: float) -> bool:
        """Whether one more message is taken."""
        left, then_s = self._left.get(name, (BURST * self._rate, at_s))
        left = min(BURST * self._rate, left + (at_s - then_s) * self._rate)
        self._left[name] = (max(left - 1.0, 0.0), at_s)
        return left >= 1.0

    def grant(self, name: str) -> None:
        """A few more, for what is expected of it."""
        left, then_s = self._left.get(name, (BURST * self._rate, 0.0))
        self._left[name] = (min(left + PER_ORDER, BURST * self._rate), then_s)
