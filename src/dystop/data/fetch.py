"""The files of a data set: found in a folder, or downloaded.

A download goes to a temporary file. It gets its name after its digest has been checked, so a file
in the cache is always complete.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dystop.data.catalogue import Entry, RemoteFile
from dystop.errors import DataError, StorageError

VARIABLE = "DYSTOP_DATA"
_SYSTEM = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
_TIMEOUT_S = 30
_MOST_WORDS = 200  # letters of the reason why a download failed


def user_cache() -> Path:
    """Return the folder for downloads, by the convention of the operating system."""
    import pooch  # slow to import; packaged data sets do not need it

    return Path(pooch.os_cache("dystop"))


def search_folders(root: str | Path | None = None) -> list[Path]:
    """Return the folders that may hold data, in search order.

    Raises:
        DataError: A folder that the user named does not exist.
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
    """Yield every folder that may hold this data set."""
    for folder in folders:
        yield from (folder / sub for sub in ("", entry.name, *entry.folders))


def find_files(entry: Entry, home: Path) -> dict[str, Path] | None:
    """Return the files of a data set in one folder by official name; None if one is missing."""
    found = {file.name: _find(file, home) for file in entry.files}
    return {n: p for n, p in found.items() if p} if all(found.values()) else None


def _find(file: RemoteFile, home: Path) -> Path | None:
    if (home / file.name).is_file():
        return home / file.name
    if file.unpacked and (home / file.unpacked).is_dir():
        return home / file.unpacked
    return None


def download_files(entry: Entry, cache: Path) -> dict[str, Path]:
    """Download missing files into `cache/<name>`, check them, and return all paths.

    Raises:
        DataError: A file could not be downloaded, or is not the official file.
        StorageError: The cache cannot be written.
    """
    return {file.name: _download(entry, file, cache / entry.name) for file in entry.files}


def _download(entry: Entry, file: RemoteFile, folder: Path) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # the progress bar replaces its log
    bar = _ProgressBar(file.name)
    fetcher = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=_TIMEOUT_S)
    try:
        path = pooch.retrieve(file.url, file.digest, file.name, folder, downloader=fetcher)
    except (OSError, ValueError) as error:
        # Network errors are OSErrors without errno; disk errors have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{folder}: cannot store {file.name}: {error.strerror}") from error
        why = f"{file.url} could not be downloaded ({_reason(error)})"
        raise _unavailable(entry, folder, why) from error
    finally:
        bar.close()
    return Path(path)


def _reason(error: BaseException) -> str:
    """Return the first cause of an error in a few words; libraries wrap it several times."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return reason.strip().splitlines()[0][:_MOST_WORDS] if reason.strip() else type(error).__name__


def not_found(entry: Entry, searched: Sequence[Path], cache: Path) -> DataError:
    """Return the error for a data set that no folder holds while downloads are off."""
    places = ", ".join(str(p) for p in searched)
    return _unavailable(entry, cache / entry.name, f"not found in {places}; downloads are off")


def _unavailable(entry: Entry, folder: Path, why: str) -> DataError:
    files = ", ".join(f"{f.name} ({f.url})" for f in entry.files)
    return DataError(
        f"data set {entry.name!r}: {why}. Put these files into {folder}, or into a folder named by "
        f"root or by {VARIABLE}: {files}. A converted {entry.name}.npz works too, and "
        "'fmnist-mini' and 'synthetic' need no download."
    )


class _ProgressBar:
    """A progress bar for pooch, drawn by rich; silent without a terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        console = Console(stderr=True)
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        """Total bytes of the download."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, more: int) -> None:
        """Advance by so many bytes."""
        self._progress.advance(self._task, more)

    def reset(self) -> None:
        """Start again at zero."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Stop drawing the bar."""
        self._progress.stop()
