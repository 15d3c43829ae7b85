"""IDX files (.gz), the format of MNIST and Fashion-MNIST."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystop.data.files import refusal

_UNSIGNED_BYTE = 0x08


def read_idx(
    path: Path, shape: tuple[int, ...], content_sha256: str | None = None
) -> NDArray[np.uint8]:
    """Read a compressed IDX file of unsigned bytes that must have this shape.

    The digest is of the uncompressed content: a copy that somebody compressed again is still the
    official one, while MNIST, whose files have the same names and sizes, is not Fashion-MNIST.

    Raises:
        DataError: the file is truncated, of another format, of another size or other content.
    """
    raw = _unzip(path, 4 + 4 * len(shape) + math.prod(shape))
    _check_header(path, raw, shape)
    if content_sha256 and hashlib.sha256(raw).hexdigest() != content_sha256:
        raise refusal(
            path,
            "right format and size, but not the content that was published "
            "(MNIST has files of the same names)",
            f"content with sha256 {content_sha256}",
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()


def _unzip(path: Path, size: int) -> bytes:
    """Uncompress one byte more than expected at most: a bomb cannot fill the memory."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise refusal(path, f"corrupt or truncated ({error})", "a complete .gz file") from error


def _check_header(path: Path, raw: bytes, shape: tuple[int, ...]) -> None:
    magic = bytes([0, 0, _UNSIGNED_BYTE, len(shape)])
    if raw[:4] != magic:
        wrong = f"not an IDX file of {len(shape)} dimensions (starts with 0x{raw[:4].hex()})"
        raise refusal(path, wrong, f"0x{magic.hex()}")
    header = 4 + 4 * len(shape)
    found = tuple(np.frombuffer(raw[4:header].ljust(4 * len(shape), b"\0"), ">u4").tolist())
    if found != shape:
        raise refusal(path, f"holds {_times(found)} values", f"{_times(shape)}")
    if len(raw) != header + math.prod(shape):
        kind = "too few" if len(raw) < header + math.prod(shape) else "too many"
        raise refusal(path, f"{kind} bytes", f"{math.prod(shape)} after the header")


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
