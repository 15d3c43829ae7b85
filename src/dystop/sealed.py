"""Sealed files: a safetensors file whose header contains the SHA-256 of the whole file.

The digest is computed with 64 zeros in its own place. A single wrong bit anywhere is therefore
detected, before any length in the file is believed. Files are read in pieces: a checkpoint of many
large models does not fit into memory twice.
"""

import hashlib
import os
import re
from typing import BinaryIO

FIELD = "sha256"
UNSEALED = "0" * 64
"""Value of `FIELD` in the metadata of a file that `seal` is going to complete."""

_FOUND = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_LENGTH_BYTES = 8  # of the length of the header
MAX_HEADER_BYTES = 100_000_000  # safetensors reads no longer one
_PIECE_BYTES = 1 << 20


def seal(file: BinaryIO) -> None:
    """Write the digest of a file into its header; the file is open for reading and writing."""
    at, _ = _noted_digest(file)
    digest = _digest(file, at)
    file.seek(at)
    file.write(digest.encode())


def check_seal(file: BinaryIO) -> None:
    """Raise ValueError if a single bit of a sealed file has changed."""
    at, noted = _noted_digest(file)
    if _digest(file, at) != noted:
        raise ValueError("its digest is wrong")


def read_header(file: BinaryIO) -> bytes:
    """Return the header; raise ValueError if its length cannot be right."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise ValueError("the length of its header is wrong")
    return file.read(length)


def _noted_digest(file: BinaryIO) -> tuple[int, str]:
    """Return where the digest is, and the digest."""
    found = _FOUND.search(read_header(file))
    if found is None:
        raise ValueError("it has no digest")
    return _LENGTH_BYTES + found.start(1), found[1].decode()


def _digest(file: BinaryIO, at: int) -> str:
    """Return the digest of a file, with zeros at this place."""
    file.seek(0)
    whole = hashlib.sha256(file.read(at))
    whole.update(UNSEALED.encode())
    file.seek(at + len(UNSEALED))
    while piece := file.read(_PIECE_BYTES):
        whole.update(piece)
    return whole.hexdigest()
