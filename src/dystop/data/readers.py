"""Readers of the official file formats: IDX (Fashion-MNIST), CIFAR and SVHN.

A reader checks every file against its published digest or size, and refuses a bad file with an
error that says what is wrong and what to do. Of CIFAR only the *binary* versions are read: the
official Python versions are pickles, which can run any code when they are read.
"""

import gzip
import hashlib
import math
import os
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.dataset import Splits
from dystop.errors import DataError
from dystop.sparse import Ints

_REPLACE = "Replace it with the official file, or delete it and run again to download it"
_IDX_UNSIGNED_BYTE = 0x08
_CIFAR_PIXELS = 3 * 32 * 32


def refusal(path: Path, wrong: str, expected: str, todo: str = _REPLACE) -> DataError:
    """Return the error for an unusable file: which file, what is wrong, what to do."""
    return DataError(f"{path}: {wrong}; expected {expected}. {todo}.")


def check_memory(path: Path, what: str, needed: int, todo: str) -> None:
    """Refuse to decode what would take more than half of this machine's memory.

    A small file may claim to hold a large array.
    """
    memory = physical_bytes()
    if needed > memory // 2:
        wrong = f"{what} would take about {needed / 1e9:,.1f} GB of memory"
        raise refusal(path, wrong, f"at most half of this machine's {memory / 1e9:,.1f} GB", todo)


def physical_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_digest(path: Path, known: str) -> None:
    """Check a file against a digest, written as "sha256:..." or "md5:...".

    Raises:
        DataError: The file differs from the published one.
    """
    algorithm, _, published = known.partition(":")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise refusal(path, f"cannot be read ({error.strerror})", "a readable file") from error
    if found != published:
        raise refusal(
            path,
            f"corrupt, truncated or not the official file ({algorithm} {found})",
            f"{algorithm} {published}",
        )


def read_idx(
    path: Path, shape: tuple[int, ...], content_sha256: str | None = None
) -> NDArray[np.uint8]:
    """Read a compressed IDX file of unsigned bytes, which must have this shape.

    The digest is that of the uncompressed content. So a copy that was compressed again is accepted,
    and MNIST, whose files have the same names and sizes as those of Fashion-MNIST, is refused.

    Raises:
        DataError: The file is truncated, or its format, size or content is wrong.
    """
    raw = _decompress(path, 4 + 4 * len(shape) + math.prod(shape))
    _check_idx_header(path, raw, shape)
    if content_sha256 and hashlib.sha256(raw).hexdigest() != content_sha256:
        raise refusal(
            path,
            "right format and size, but not the published content "
            "(MNIST has files of the same names)",
            f"content with sha256 {content_sha256}",
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()


def _decompress(path: Path, size: int) -> bytes:
    """Decompress at most one byte more than expected: a zip bomb cannot fill the memory."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise refusal(path, f"corrupt or truncated ({error})", "a complete .gz file") from error


def _check_idx_header(path: Path, raw: bytes, shape: tuple[int, ...]) -> None:
    magic = bytes([0, 0, _IDX_UNSIGNED_BYTE, len(shape)])
    if raw[:4] != magic:
        wrong = f"not an IDX file of {len(shape)} dimensions (starts with 0x{raw[:4].hex()})"
        raise refusal(path, wrong, f"0x{magic.hex()}")
    header = 4 + 4 * len(shape)
    found = tuple(np.frombuffer(raw[4:header].ljust(4 * len(shape), b"\0"), ">u4").tolist())
    if found != shape:
        raise refusal(path, f"holds {_dimensions(found)} values", f"{_dimensions(shape)}")
    if len(raw) != header + math.prod(shape):
        kind = "too few" if len(raw) < header + math.prod(shape) else "too many"
        raise refusal(path, f"{kind} bytes", f"{math.prod(shape)} after the header")


def _dimensions(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)


@dataclass(frozen=True, slots=True)
class CifarLayout:
    """The members of a CIFAR archive. A record is `label_bytes` labels, then the pixels.

    The last label of a record is used.
    """

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int


CIFAR10 = CifarLayout(
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
    test=("test_batch.bin",),
    label_bytes=1,
)
CIFAR100 = CifarLayout(  # a record begins with the coarse label, then the fine label
    folder="cifar-100-binary", train=("train.bin",), test=("test.bin",), label_bytes=2
)


def read_cifar(
    path: Path, layout: CifarLayout, sizes: tuple[int, int], digest: str | None = None
) -> Splits:
    """Read the official CIFAR archive, or its unpacked folder.

    Args:
        path: The .tar.gz, or a folder that holds the .bin files.
        layout: CIFAR10 or CIFAR100.
        sizes: Images expected in the train and in the test split.
        digest: Digest of the archive. The files of a folder are checked by size.

    Raises:
        DataError: A file is missing, corrupt, or not of the expected size.
    """
    members = (*layout.train, *layout.test)
    sizes_by_member = _member_sizes(layout, sizes)
    if path.is_dir():
        raw = {m: _read_unpacked(path / m, sizes_by_member[m]) for m in members}
    else:
        if digest:
            check_digest(path, digest)
        raw = _read_archive(path, layout.folder, sizes_by_member)
    x_train, y_train = _decode_records([raw[m] for m in layout.train], layout.label_bytes)
    x_test, y_test = _decode_records([raw[m] for m in layout.test], layout.label_bytes)
    return Splits(x_train, y_train, x_test, y_test)


def _member_sizes(layout: CifarLayout, sizes: tuple[int, int]) -> dict[str, int]:
    """Return the bytes that every member must have."""
    record = layout.label_bytes + _CIFAR_PIXELS
    train = {m: sizes[0] // len(layout.train) * record for m in layout.train}
    return train | {m: sizes[1] // len(layout.test) * record for m in layout.test}


def _read_unpacked(path: Path, size: int) -> bytes:
    if not path.is_file():
        raise refusal(path, "missing", f"a file of {size} bytes")
    if path.stat().st_size != size:
        raise refusal(path, f"has {path.stat().st_size} bytes", f"{size}")
    return path.read_bytes()


def _read_archive(path: Path, folder: str, sizes: dict[str, int]) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            return {m: _read_member(path, archive, f"{folder}/{m}", n) for m, n in sizes.items()}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        wrong = f"corrupt or truncated ({error})"
        raise refusal(path, wrong, "the complete binary-version .tar.gz") from error


def _read_member(path: Path, archive: tarfile.TarFile, name: str, size: int) -> bytes:
    try:
        member = archive.getmember(name)
    except KeyError:
        wrong = f"has no member {name!r}"
        raise refusal(path, wrong, "the official binary version (not the Python one)") from None
    file = archive.extractfile(member)
    if file is None or member.size != size:
        raise refusal(path, f"member {name!r} has {member.size} bytes", f"{size}")
    return file.read()


def _decode_records(parts: Sequence[bytes], label_bytes: int) -> tuple[NDArray[np.uint8], Ints]:
    record = label_bytes + _CIFAR_PIXELS
    rows = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, record)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return images, rows[:, label_bytes - 1].astype(np.int64)


def read_svhn(path: Path, size: int, digest: str | None = None) -> tuple[NDArray[np.uint8], Ints]:
    """Read an SVHN .mat file: images [n, 3, 32, 32] and labels; its label 10 is the digit 0.

    Raises:
        DataError: The file is corrupt, lacks X or y, or is not of the expected size.
    """
    if digest:
        check_digest(path, digest)
    content = _load_mat(path)
    for key, shape in (("X", (32, 32, 3, size)), ("y", (size, 1))):
        if key not in content:
            raise refusal(path, f"has no array {key!r}", "the arrays X and y of the cropped digits")
        if np.shape(content[key]) != shape:
            raise refusal(path, f"{key} has shape {np.shape(content[key])}", f"{shape}")
    pixels, labels = content["X"], content["y"].reshape(-1)
    if pixels.dtype != np.uint8:
        raise refusal(path, f"X is {pixels.dtype}", "uint8")
    if labels.min() < 1 or labels.max() > 10:
        found = f"labels from {labels.min()} to {labels.max()}"
        raise refusal(path, found, "1 to 10, where 10 is the digit 0")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def _load_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # slow to import, and rarely needed

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # SciPy raises a dozen types for damaged files
        raise refusal(path, f"corrupt or truncated ({error})", "a MATLAB 5 .mat file") from error
    return content
