"""Refusing a bad file, and checking one against its published digest."""

import gzip
import hashlib
import math
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


def refusal(path: Path, wrong: str, expected: str, todo: str = _REPLACE) -> DataError:
    """The error for a file that cannot be used: which file, what is wrong, what to do."""
    return DataError(f"{path}: {wrong}; expected {expected}. {todo}.")


def check_digest(path: Path, known: str) -> None:
    """Compare a file with a digest written as "sha256:..." or "md5:...".

    Raises:
        DataError: the file differs from the one that was published.
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


# MERGED: IDX files (.gz), the format of MNIST and Fashion-MNIST.


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


# MERGED: The official *binary* versions of CIFAR-10 and CIFAR-100. The official Python versions
#   are pickles, which can run anything when read; they are not accepted.


_PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True)
class CifarLayout:
    """Which members hold what: a record is `label_bytes` labels, the last one used, and pixels."""

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
CIFAR100 = CifarLayout(  # a record begins with the coarse label, then the fine one
    folder="cifar-100-binary", train=("train.bin",), test=("test.bin",), label_bytes=2
)


def read_cifar(
    path: Path, layout: CifarLayout, sizes: tuple[int, int], digest: str | None = None
) -> Splits:
    """Read the official archive, or the folder it unpacks to.

    Args:
        path: the .tar.gz, or a folder that holds the .bin files.
        layout: CIFAR10 or CIFAR100.
        sizes: images expected in the train and in the test split.
        digest: digest of the archive; a folder has none, its files are checked by size.

    Raises:
        DataError: something is missing, corrupt, or not of the expected size.
    """
    members = (*layout.train, *layout.test)
    limits = _record_limits(layout, sizes)
    if path.is_dir():
        raw = {m: _read_plain(path / m, limits[m]) for m in members}
    else:
        if digest:
            check_digest(path, digest)
        raw = _read_archive(path, layout.folder, limits)
    x_train, y_train = _decode([raw[m] for m in layout.train], layout.label_bytes)
    x_test, y_test = _decode([raw[m] for m in layout.test], layout.label_bytes)
    return Splits(x_train, y_train, x_test, y_test)


def _record_limits(layout: CifarLayout, sizes: tuple[int, int]) -> dict[str, int]:
    """Bytes that every member must have."""
    record = layout.label_bytes + _PIXELS
    train = {m: sizes[0] // len(layout.train) * record for m in layout.train}
    return train | {m: sizes[1] // len(layout.test) * record for m in layout.test}


def _read_plain(path: Path, size: int) -> bytes:
    if not path.is_file():
        raise refusal(path, "missing", f"a file of {size} bytes")
    if path.stat().st_size != size:
        raise refusal(path, f"has {path.stat().st_size} bytes", f"{size}")
    return path.read_bytes()


def _read_archive(path: Path, folder: str, limits: dict[str, int]) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r:gz") as archive:
            return {m: _read_member(path, archive, f"{folder}/{m}", n) for m, n in limits.items()}
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


def _decode(parts: Sequence[bytes], label_bytes: int) -> tuple[NDArray[np.uint8], Ints]:
    record = label_bytes + _PIXELS
    rows = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, record)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return images, rows[:, label_bytes - 1].astype(np.int64)


# MERGED: The official SVHN "cropped digits" files, train_32x32.mat and test_32x32.mat.


def read_svhn(path: Path, size: int, digest: str | None = None) -> tuple[NDArray[np.uint8], Ints]:
    """Read one .mat file: images [n, 3, 32, 32] and labels, where the file's 10 is the digit 0.

    Raises:
        DataError: the file is corrupt, lacks X or y, or is not of the expected size.
    """
    if digest:
        check_digest(path, digest)
    content = _load(path)
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


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # slow to import, and few runs read these files

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # on damaged input SciPy raises a dozen different kinds
        raise refusal(path, f"corrupt or truncated ({error})", "a MATLAB 5 .mat file") from error
    return content
