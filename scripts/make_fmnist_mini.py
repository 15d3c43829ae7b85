"""Write the subset of Fashion-MNIST that is packaged with dystop.

    python scripts/make_fmnist_mini.py FOLDER [OUT]

FOLDER holds the four official .gz files of Fashion-MNIST; their content is checked. OUT defaults
to the place in the source tree from which the package loads it. The digest that is printed must
be the one in `dystop/data/fmnist_mini.py`: it is of the content, which no version of LZMA changes.
"""

import argparse
import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np

from dystop.data import ENTRIES, Dataset, load_entry
from dystop.data.fmnist_mini import FILE

_OUT = Path(__file__).parents[1] / "src/dystop/data" / FILE
_FILTERS = [  # lc = 4 and pb = 0 suit bytes without word structure; the dictionary spans the whole
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24}
    | {"lc": 4, "lp": 0, "pb": 0}
]


def first_of_each_class(x: np.ndarray, y: np.ndarray, count: int) -> bytes:
    """The first images of every class in official order, class after class."""
    classes = range(ENTRIES["fmnist-mini"].classes)
    return b"".join(x[np.flatnonzero(y == k)[:count]].tobytes() for k in classes)


def content(full: Dataset) -> bytes:
    """Train split, then test split."""
    mini = ENTRIES["fmnist-mini"]
    train = first_of_each_class(full.x_train, full.y_train, mini.train // mini.classes)
    return train + first_of_each_class(full.x_test, full.y_test, mini.test // mini.classes)


def main() -> None:
    """Read, cut, compress, write."""
    parser = argparse.ArgumentParser(description="Write the packaged subset of Fashion-MNIST.")
    parser.add_argument("folder", type=Path, help="folder with the four official .gz files")
    parser.add_argument("out", type=Path, nargs="?", default=_OUT, help="file to write")
    args = parser.parse_args()
    full = load_entry(ENTRIES["fashion-mnist"], [args.folder], cache=args.folder, download=False)
    raw = content(full)
    packed = lzma.compress(raw, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)
    args.out.write_bytes(packed)
    sys.stdout.write(
        f"{args.out}: {len(packed)} bytes, content sha256 {hashlib.sha256(raw).hexdigest()}\n"
    )


if __name__ == "__main__":
    main()
