"""Proof that every node sees the folder of a study: it reads back what the driver has written."""

import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import RunFolderError
from dystop.storage import write_atomic


@dataclass(frozen=True)
class Nonce:
    """A file of the study with a text that nobody can guess."""

    path: Path
    text: str


@contextmanager
def written_nonce(study: Path) -> Iterator[Nonce]:
    """Write a nonce into the folder of a study, and remove it in the end."""
    text = secrets.token_hex(16)
    nonce = Nonce(study.resolve() / f".nonce-{text[:8]}", text)
    write_atomic(nonce.path, text.encode())
    try:
        yield nonce
    finally:
        nonce.path.unlink(missing_ok=True)


def read_back(path: str, text: str) -> tuple[str, str]:
    """Return the name of this node, and why it does not see the nonce; runs on the node.

    The second text is empty if the folder is shared.
    """
    host = socket.gethostname()
    try:
        found = Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        return host, f"{Path(path).parent} cannot be read: {getattr(error, 'strerror', error)}"
    return host, "" if found == text else f"{Path(path).parent} is another folder there"


def refuse_unshared(study: Path, problems: Mapping[str, str]) -> None:
    """Refuse a folder that some nodes do not see.

    Args:
        study: The folder.
        problems: What `read_back` answered, by node.

    Raises:
        RunFolderError: Names the nodes.
    """
    wrong = {node: problem for node, problem in problems.items() if problem}
    if wrong:
        shown = "; ".join(f"node {node}: {problem}" for node, problem in sorted(wrong.items()))
        raise RunFolderError(
            f"{study}: not a folder that all nodes share: {shown}. Mount the same folder at the "
            "same path on every node, or choose a shared one with --out"
        )
