"""Who may come in: those in the roster, with the certificate that the roster names."""

import threading
from collections.abc import Iterable

from dystop.runtime.messages import Peer


class Door:
    """Asked by the transport for every peer (`Allowed`), told by the node what the roster says.

    >>> door = Door("observer")
    >>> door("w01", ""), door("observer", "")
    (False, True)
    >>> door.update([Peer("w01", 1, "memory:1", "aa")])
    set()
    >>> door("w01", "aa"), door("w01", "bb"), door.update([])
    (True, False, {'w01'})
    """

    def __init__(self, *always: str) -> None:
        """These come in at any time; the authority vouches for their names."""
        self._always = frozenset(always)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, fingerprint: str) -> bool:
        """Whether a peer may come in. Fingerprints count where both sides have one."""
        if name in self._always:
            return True
        with self._lock:
            known = self._known.get(name)
        return known is not None and (not known or not fingerprint or known == fingerprint)

    def update(self, peers: Iterable[Peer]) -> set[str]:
        """These are in now; tells who was before and is not, or has another certificate."""
        known = {p.name: p.fingerprint for p in peers}
        with self._lock:
            before, self._known = self._known, known
        return {name for name, mark in before.items() if known.get(name) != mark}
