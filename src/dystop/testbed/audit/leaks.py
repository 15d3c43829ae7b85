"""Search for secrets in files where they must not be: logs, databases, reports, traces (I9)."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_FILES = (".key", ".pem")  # a key belongs into a key file
_CHUNK_BYTES = 2**20
_OVERLAP_BYTES = 4096


def leaks(folder: Path, canaries: Sequence[str] = ()) -> Iterator[tuple[Path, str]]:
    """Yield files that hold a private key or one of the given secrets, with what was found.

    Key files are left out. The finding is named by its kind, never by its value.

    >>> list(leaks(Path("/nowhere")))
    []
    """
    wanted = [("a given secret", re.compile(re.escape(c.encode()))) for c in canaries if c]
    wanted.append(("a private key", PRIVATE_KEY))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.suffix in _KEY_FILES:
            continue
        yield from ((path, what) for what, pattern in wanted if _holds(path, pattern))


def _holds(path: Path, pattern: re.Pattern[bytes]) -> bool:
    """Return whether a file holds a pattern; reads in pieces, because checkpoints are large."""
    tail = b""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            if pattern.search(tail + piece):
                return True
            tail = piece[-_OVERLAP_BYTES:]
    return False
