"""The official *binary* versions of CIFAR-10 and CIFAR-100.

The official Python versions are pickles, which can run anything when read; they are not accepted.
"""

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystop.data.dataset import Splits
from dystop.data.files import check_digest, refusal
from dystop.sparse import Ints

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
