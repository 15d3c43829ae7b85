"""Refusing a bad file, and checking one against its published digest."""

import hashlib
from pathlib import Path

from dystop.errors import DataError

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
