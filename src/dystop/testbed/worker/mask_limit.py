"""How many different masks one peer may request of one model.

Each mask is a form of its own: it costs an encoding and a line in the event log. An order names one
mask for each stage of a round, so an honest peer needs few of them.
"""

from dystop.testbed.protocol.messages import Mask

MAX_MASKS = 16  # of one model and one peer
MAX_MODELS = 8  # newest models that are remembered


class MaskLimit:
    """The masks that each peer has requested of the newest models."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, set[Mask]]] = {}  # by version, then by peer

    def allows(self, version: int, peer: str, mask: Mask | None) -> bool:
        """Register a request; return whether it may be answered."""
        if mask is None:
            return True
        masks = self._seen.setdefault(version, {}).setdefault(peer, set())
        while len(self._seen) > MAX_MODELS:
            del self._seen[min(self._seen)]
        if mask not in masks and len(masks) >= MAX_MASKS:
            return False
        masks.add(mask)
        return True
