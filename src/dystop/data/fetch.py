"""Finding the files of a set: in the folders that may hold it, else by download.

A download goes to a temporary name, is checked against its published digest and only then gets
its own name: a file in the cache is always whole.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dystop.data.catalogue import Entry, RemoteFile
from dystop.errors import DataError, StorageError

VARIABLE = "DYSTOP_DATA"
_SYSTEM = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
_TIMEOUT_S = 30


def user_cache() -> Path:
    """Folder that downloads go to, by the custom of the operating system."""
    import pooch  # slow to import; packaged sets need none of this

    return Path(pooch.os_cache("dystop"))


def search_folders(root: str | Path | None = None) -> list[Path]:
    """Folders that may hold data, in the order they are searched.

    Raises:
        DataError: a folder that the user named does not exist.
    """
    named = ((str(root or ""), "root"), (os.environ.get(VARIABLE, ""), VARIABLE))
    chosen = [_existing(folder, origin) for folder, origin in named if folder]
    return [*chosen, *_SYSTEM, user_cache(), Path("data")]


def _existing(folder: str, origin: str) -> Path:
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise DataError(f"data folder {path} (from {origin}) does not exist; create or correct it")
    return path


def homes(entry: Entry, folders: Sequence[Path]) -> Iterator[Path]:
    """Every folder in which this set may lie."""
    for folder in folders:
        yield from (folder / sub for sub in ("", entry.name, *entry.folders))


def find_files(entry: Entry, home: Path) -> dict[str, Path] | None:
    """The set's files in one folder by official name, or None unless all are there."""
    found = {file.name: _find(file, home) for file in entry.files}
    return {n: p for n, p in found.items() if p} if all(found.values()) else None


def _find(file: RemoteFile, home: Path) -> Path | None:
    if (home / file.name).is_file():
        return home / file.name
    if file.unpacked and (home / file.unpacked).is_dir():
        return home / file.unpacked
    return None


def download_files(entry: Entry, cache: Path) -> dict[str, Path]:
    """Download what is missing into `cache/<name>`, checked, and return all paths.

    Raises:
        DataError: a file could not be fetched, or what came is not the official file.
        StorageError: the cache cannot be written.
    """
    return {file.name: _download(entry, file, cache / entry.name) for file in entry.files}


def _download(entry: Entry, file: RemoteFile, folder: Path) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # the progress bar says what its log would say
    bar = _Bar(file.name)
    fetcher = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=_TIMEOUT_S)
    try:
        path = pooch.retrieve(file.url, file.digest, file.name, folder, downloader=fetcher)
    except (OSError, ValueError) as error:
        # Network errors are OSErrors without a number; the disk's have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{folder}: cannot store {file.name}: {error.strerror}") from error
        raise _unavailable(entry, folder, f"{file.url} could not be fetched: {error}") from error
    finally:
        bar.close()
    return Path(path)


def not_found(entry: Entry, searched: Sequence[Path], cache: Path) -> DataError:
    """The error for a set that is nowhere while downloads are off."""
    places = ", ".join(str(p) for p in searched)
    return _unavailable(entry, cache / entry.name, f"not found in {places}; downloads are off")


def _unavailable(entry: Entry, folder: Path, why: str) -> DataError:
    files = ", ".join(f"{f.name} ({f.url})" for f in entry.files)
    return DataError(
        f"data set {entry.name!r}: {why}. Put these files into {folder}, or into a folder named by "
        f"root or by {VARIABLE}: {files}. A converted {entry.name}.npz there will do as well, and "
        "'fmnist-mini' and 'synthetic' need no download."
    )


class _Bar:
    """The progress bar that pooch asks for, drawn by rich; silent where there is no terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._shown = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._shown.add_task(title, total=None)
        self._shown.start()

    @property
    def total(self) -> float | None:
        """Bytes to come."""
        return self._shown.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._shown.update(self._task, total=size or None)

    def update(self, more: int) -> None:
        """Move on by so many bytes."""
        self._shown.advance(self._task, more)

    def reset(self) -> None:
        """Go back to the beginning."""
        self._shown.update(self._task, completed=0)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._shown.stop()
