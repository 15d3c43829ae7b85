"""What a worker tells the coordinator about its peers, gathered so that it costs few messages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dystop.testbed.events import SendToCoordinator
from dystop.testbed.protocol.codec import shown
from dystop.testbed.protocol.messages import Incident, IncidentKind

PAUSE_S = 2.0  # between two messages about the same peer and kind
MAX_COUNT = 1_000_000  # in one message


@dataclass
class PeerIncidents:
    """Incidents of peers that the coordinator does not know yet. The caller provides the time."""

    _waiting: dict[tuple[str, IncidentKind], tuple[int, str]] = field(default_factory=dict)
    _sent_s: dict[tuple[str, IncidentKind], float] = field(default_factory=dict)

    def add(self, peer: str, kind: IncidentKind, text: str) -> None:
        """Remember that something is wrong with a peer."""
        count = self._waiting.get((peer, kind), (0, ""))[0] + 1
        self._waiting[peer, kind] = (min(count, MAX_COUNT), shown(text))

    def due(self, nodes: Mapping[str, int], now_s: float) -> list[SendToCoordinator]:
        """Return the messages that are due; an incident of an unknown peer is dropped."""
        messages = []
        for key, (count, text) in list(self._waiting.items()):
            peer, kind = key
            if now_s - self._sent_s.get(key, -math.inf) < PAUSE_S:
                continue
            del self._waiting[key]
            if peer in nodes:
                self._sent_s[key] = now_s
                messages.append(SendToCoordinator(Incident(nodes[peer], kind, count, text)))
        return messages
