"""`load`: a data set by its name.

The search order is: the folder that the user names, the folder in DYSTOP_DATA, the usual system
folders, the user's cache, ./data. Then the official files are downloaded into the user's cache.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from dystop.data.catalogue import DATASETS, ENTRIES, DataSource, Entry
from dystop.data.dataset import Dataset, Splits, assemble
from dystop.data.fetch import (
    download_files,
    find_files,
    homes,
    not_found,
    search_folders,
    user_cache,
)
from dystop.data.fmnist_mini import load_fmnist_mini
from dystop.data.npz import read_npz
from dystop.data.readers import CIFAR10, CIFAR100, read_cifar, read_idx, read_svhn
from dystop.errors import DataError, nearest
from dystop.sparse import ints

Paths = Mapping[str, Path]  # official file name -> where it lies


def load(
    name: str,
    *,
    root: str | Path | None = None,
    download: bool = True,
    seed: int = 0,
    options: DataSource | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        name: A name of `DATASETS`, or the path of an `.npz` file.
        root: Folder to search first; it may hold the official files or `<name>.npz`.
        download: Whether a data set that no folder holds may be downloaded.
        seed: Seed of a generated data set.
        options: The data set of this name with its parameters; None: with its usual ones.

    Raises:
        DataError: The data set is unknown, cannot be found or downloaded, or a file is bad.

    >>> load("synthetic").shape
    (1, 8, 8)
    """
    if name.endswith(".npz"):
        return read_npz(Path(name).expanduser())
    if name not in DATASETS:
        raise DataError(
            f"unknown data set {name!r}; allowed: {', '.join(DATASETS)}, "
            f"and any path that ends in .npz{nearest(name, DATASETS)}"
        )
    source = options or DATASETS.make(name)
    if isinstance(source, Files):
        return source.found(root, download=download)
    found = source.load(seed)
    if not isinstance(found, Dataset):
        raise DataError(f"data set {name!r}: load returned {type(found).__name__}, not a Dataset")
    return found


class Files(DataSource):
    """A data set of official files, which the user's folders hold or a download brings."""

    entry: ClassVar[Entry]

    def __init_subclass__(cls) -> None:
        """Take what is known of the files."""
        cls.name, cls.summary, cls.licence = cls.entry.name, cls.entry.origin, cls.entry.licence
        cls.class_names = cls.entry.class_names

    def load(self, seed: int) -> Dataset:
        """Return the data set, from wherever it is found; the seed does not matter."""
        return self.found(None, download=True)

    def found(self, root: str | Path | None, *, download: bool) -> Dataset:
        """Return the data set of these files."""
        return load_entry(self.entry, search_folders(root), cache=user_cache(), download=download)

    def place(self, folders: Sequence[Path]) -> str:
        """Return the folder that holds its files, or a converted one."""
        for home in homes(self.entry, folders):
            if find_files(self.entry, home) or (home / f"{self.name}.npz").is_file():
                return str(home)
        return ""

    def row(self) -> tuple[str, ...]:
        """Return a row of text, with the shape and the sizes of its files."""
        entry, (name, *_, task, licence, origin) = self.entry, super().row()
        shape, sizes = " x ".join(map(str, entry.shape)), f"{entry.train} / {entry.test}"
        return name, shape, str(entry.classes), sizes, task, licence, origin


class FmnistMini(Files):
    """Ten thousand images of clothes, which come with dystop."""

    entry = ENTRIES["fmnist-mini"]

    def found(self, root: str | Path | None, *, download: bool) -> Dataset:
        """Return the packaged data set."""
        return load_fmnist_mini()

    def place(self, folders: Sequence[Path]) -> str:
        """Say that it is part of the package."""
        return "included (packaged)"


class FashionMnist(Files):
    """Fashion-MNIST."""

    entry = ENTRIES["fashion-mnist"]


class Cifar10(Files):
    """CIFAR-10."""

    entry = ENTRIES["cifar10"]


class Cifar100(Files):
    """CIFAR-100."""

    entry = ENTRIES["cifar100"]


class Svhn(Files):
    """Street View House Numbers, cropped."""

    entry = ENTRIES["svhn"]


def load_entry(entry: Entry, folders: Sequence[Path], *, cache: Path, download: bool) -> Dataset:
    """Load a data set of the catalogue from the first folder that holds it, else download it.

    Raises:
        DataError: The data set cannot be found or downloaded, or a file is bad.
    """
    for home in homes(entry, folders):
        if paths := find_files(entry, home):
            return _read(entry, paths, home)
        if (converted := home / f"{entry.name}.npz").is_file():
            return _read_converted(entry, converted)
    if not download:
        raise not_found(entry, folders, cache)
    return _read(entry, download_files(entry, cache), cache / entry.name)


def _read(entry: Entry, paths: Paths, home: Path) -> Dataset:
    return assemble(
        entry.name,
        _READERS[entry.format](entry, paths),
        classes=entry.classes,
        class_names=entry.class_names,
        source=str(home),
    )


def _read_converted(entry: Entry, path: Path) -> Dataset:
    """Read a data set that the user converted: any number of images of the right shape."""
    found = read_npz(path, entry.name, entry.classes, entry.class_names)
    if found.shape != entry.shape:
        raise DataError(
            f"{path}: images have shape {found.shape} (channels, height, width); "
            f"expected {entry.shape} for {entry.name!r}. Convert it again, or load it by its path."
        )
    return found


def _read_idx_set(entry: Entry, paths: Paths) -> Splits:
    _, height, width = entry.shape
    shapes = (
        (entry.train, height, width),
        (entry.train,),
        (entry.test, height, width),
        (entry.test,),
    )
    where = [paths[file.name] for file in entry.files]
    digests = [file.content_sha256 for file in entry.files]
    with ThreadPoolExecutor(len(where)) as pool:  # decompression releases the interpreter lock
        x_train, y_train, x_test, y_test = pool.map(read_idx, where, shapes, digests)
    return Splits(x_train[:, None], ints(y_train), x_test[:, None], ints(y_test))


def _read_cifar_set(entry: Entry, paths: Paths) -> Splits:
    layout = CIFAR100 if entry.name == "cifar100" else CIFAR10
    (file,) = entry.files
    return read_cifar(paths[file.name], layout, (entry.train, entry.test), file.digest)


def _read_svhn_set(entry: Entry, paths: Paths) -> Splits:
    train, test = entry.files
    return Splits(
        *read_svhn(paths[train.name], entry.train, train.digest),
        *read_svhn(paths[test.name], entry.test, test.digest),
    )


_READERS: Mapping[str, Callable[[Entry, Paths], Splits]] = {
    "idx": _read_idx_set,
    "cifar": _read_cifar_set,
    "svhn": _read_svhn_set,
}
