"""Who may come in: those in the roster, with the certificate that the roster names."""

import threading
from collections.abc import Iterable

from dystop.runtime.wire.messages import Peer


class Door:
    """Asked by the transport for every peer (`Allowed`), told by the node what the roster says.

    >>> door = Door("observer")
    >>> door("w01", ""), door("observer", "")
    (False, True)
    >>> door.update([Peer("w01", 1, "memory:1", "aa")])
    set()
    >>> door("w01", "aa"), door("w01", "bb"), door.update([])
    (True, False, {'w01'})

    A roster without a fingerprint leaves the one that is known: a coordinator that was started
    again has not seen everybody yet.
    """

    def __init__(self, *always: str) -> None:
        """These come in before a roster names them; the authority vouches for their names."""
        self._always = set(always)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, fingerprint: str) -> bool:
        """Whether a peer may come in. Fingerprints count where both sides have one."""
        with self._lock:
            known = self._known.get(name, "" if name in self._always else None)
        return known is not None and (not known or not fingerprint or known == fingerprint)

    def update(self, peers: Iterable[Peer]) -> set[str]:
        """These are in now; tells who was before and is not, or has another certificate."""
        with self._lock:
            before = self._known
            known = {p.name: p.fingerprint or before.get(p.name, "") for p in peers}
            self._known = known
            self._always -= set(known)  # from now on the roster alone says whether they are in
        # A mark where there was none: it has only now joined, and keeps what it has begun.
        same = {name for name, mark in before.items() if mark in ("", known.get(name))}
        return set(before) - (same & set(known))
