"""Everything dystop raises on purpose, and the exit code each one ends a command with.

DystopError               1
├── ConfigError           2   a key or value of the configuration cannot be used
├── DataError             2   a data set is missing, corrupt or empty
├── RunFolderError        2   a run folder is missing, half-written, locked or foreign
├── CapacityError         2   the run cannot fit into memory
├── TransportError        2   a port, an address or a certificate cannot be used
├── StorageError          3   the disk refused a write; what was committed before is safe
├── PlanError             4   a mechanism broke the contract of `Plan`
└── VerificationError     5   a repeated run differs from the recorded one

A user's mistake always arrives as one of these, with a message that says what was wrong,
where, what is allowed and what to do next. An interrupted run exits with 130.
"""

import difflib
import shlex
from collections.abc import Iterable


class DystopError(Exception):
    """Base of every error that dystop raises on purpose."""

    exit_code = 1


class ConfigError(DystopError, ValueError):
    """A key or value of the configuration cannot be used."""

    exit_code = 2


class DataError(DystopError):
    """A data set is missing, corrupt, truncated or empty."""

    exit_code = 2


class RunFolderError(DystopError):
    """A run folder is missing, half-written, locked or not one of ours."""

    exit_code = 2


class CapacityError(DystopError):
    """The run cannot fit into the memory it may use."""

    exit_code = 2


class TransportError(DystopError):
    """A port is taken, an address cannot be reached, or a certificate is refused."""

    exit_code = 2


class StorageError(DystopError):
    """The disk refused a write; everything committed before is still there."""

    exit_code = 3


class PlanError(DystopError):
    """A mechanism returned a plan that breaks the contract."""

    exit_code = 4


class VerificationError(DystopError):
    """A repeated run differs from the recorded one."""

    exit_code = 5


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Name the allowed word closest to what was given, as the tail of a message.

    >>> nearest("staleness_bond", ["staleness_bound", "V"])
    "; did you mean 'staleness_bound'?"
    >>> nearest("zzz", ["V"])
    ''
    """
    close = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def shell_command(*words: object) -> str:
    """A dystop command that a shell reads as it is meant, whatever a path is called.

    >>> shell_command("resume", "runs/x"), shell_command("run", "my runs/x.toml", "--name", "NEW")
    ('dystop resume runs/x', "dystop run 'my runs/x.toml' --name NEW")
    """
    return shlex.join(["dystop", *map(str, words)])
