"""Files and folders that anybody may have made: no link, no pipe, no surprise in size.

A run folder may come from somebody else. `read_bounded` and `open_regular` read its files: no link,
no pipe, no more than the caller expects. `folder_within` enters its folders: by handles, and no
link. The functions let `OSError` through unless their docstring says otherwise.

This module is apart from `storage`, because traces need it: state machines, which import no clock,
read them.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO

from dystop.errors import RunFolderError

JSON_BYTES = 1 << 28
"""Most bytes of a JSON or TOML file: enough for the fleet of a million workers."""

LOG_BYTES = 1 << 31
"""Most bytes of a file with a line for each round."""

MODEL_BYTES = 1 << 32
"""Most bytes of a file with one model or its state."""

O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: refuse a symbolic link."""

NO_WAIT = os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of `os.open`: a pipe without a writer must not make anybody wait."""

NO_FILE = frozenset({errno.ELOOP, errno.EINVAL})
"""Error numbers of `open_regular` that mean: a link, or no regular file."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOREIGN_LINKS = "export"  # a folder in which other tools, such as wandb, make links of their own
_HANDLES = Path("/proc/self/fd")


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading; raise OSError for a link, a pipe, a device or a folder.

    Args:
        path: The file.
        follow: Follow a link: the user has named this file, no content of a folder has.
    """
    try:
        handle = os.open(path, os.O_RDONLY | NO_WAIT | (0 if follow else O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "a link, which is not followed", str(path)) from None
        raise
    try:
        check_regular(handle, path)
    except OSError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def check_regular(handle: int, path: Path) -> os.stat_result:
    """Return what is known about an open file; raise OSError if it is no regular one."""
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return about


def read_bounded(path: Path, most: int, *, follow: bool = False) -> bytes:
    """Return the content of a regular file; raise OSError if it has more than `most` bytes."""
    with open_regular(path, follow=follow) as file:
        return file.read(check_bounds(file, path, most))


def check_bounds(file: IO[bytes], path: Path, most: int) -> int:
    """Return the size of an open file; raise OSError if it is no regular one or has too much."""
    about = check_regular(file.fileno(), path)
    if about.st_size > most:
        text = f"has {about.st_size:,} bytes, at most {most:,} are read"
        raise OSError(errno.EFBIG, text, str(path))
    return about.st_size


@contextmanager
def folder_within(root: Path, *names: str, create: bool = False) -> Iterator[Path]:
    """Enter a folder below another one; follow no link on the way.

    Args:
        root: The folder that the user has named; it may be a link.
        names: The way from there, folder by folder.
        create: Make the folders that are missing.

    Yields:
        A path that leads into this very folder, whatever is renamed meanwhile. On a system without
        `/proc` it is the plain path.

    Raises:
        RunFolderError: One of the folders is a link.
    """
    path, handle = root, os.open(root, _FOLDER)
    try:
        for name in names:
            path = path / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            outer, handle = handle, _open_folder(path, handle)
            os.close(outer)
        inside = opened_path(handle, path)
        try:
            yield inside
        except OSError as error:
            error.filename = str(error.filename or path).replace(str(inside), str(path), 1)
            raise
    finally:
        os.close(handle)


def _open_folder(path: Path, within: int) -> int:
    try:
        return os.open(path.name, _FOLDER | O_NOFOLLOW, dir_fd=within)
    except OSError as error:
        _refuse_link(path)
        error.filename = str(path)
        raise


def opened_path(handle: int, path: Path) -> Path:
    """Return a path to what a handle has open; the plain path where the system has none."""
    opened = _HANDLES / str(handle)
    return opened if opened.exists() else path


def refuse_links(folder: Path) -> None:
    """Raise RunFolderError if there is a link in a folder that is going to be written."""
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _refuse_link(Path(base, name))
        folders[:] = [name for name in folders if name != _FOREIGN_LINKS]


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        if path.is_relative_to(_HANDLES):
            path = Path(os.path.realpath(path.parent), path.name)
        raise RunFolderError(
            f"{path}: a link to {os.readlink(path)}, which is not followed; replace the link by "
            "what it leads to, or start a new run"
        )
