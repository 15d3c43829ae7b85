"""The exceptions that dystop raises on purpose, and their exit codes.

DystopError               1
├── ConfigError           2   a key or value of the configuration cannot be used
├── DataError             2   a data set is missing, corrupt or empty
├── RunFolderError        2   a run folder is missing, incomplete, locked or unknown
│   └── TrustError        2   a folder of somebody else names code
├── CapacityError         2   the run does not fit into memory
├── TransportError        2   a port, an address or a certificate cannot be used
├── StorageError          3   the disk refused a write; earlier commits are safe
├── PlanError             4   a mechanism returned a plan that breaks the contract
├── UserCodeError         4   the user's own mechanism, model or task fails
├── VerificationError     5   a repeated run differs from the recorded one
└── DivergedError         7   the models of a run have diverged; its records are kept

Every mistake of a user raises one of these. The message says what is wrong, where, what is allowed
and what to do next. An interrupted run exits with 130, a testbed that left a party behind with 6.
"""

import shlex
from collections.abc import Iterable

_MOST_SLIPS, _LEAST_PART = 3, 3  # letters of a word that is close
_PART_LETTERS = 8  # of a beginning, in which one slip is close


class DystopError(Exception):
    """Base class of the exceptions that dystop raises on purpose."""

    exit_code = 1


class ConfigError(DystopError, ValueError):
    """A key or value of the configuration cannot be used."""

    exit_code = 2


class DataError(DystopError):
    """A data set is missing, corrupt, truncated or empty."""

    exit_code = 2


class RunFolderError(DystopError):
    """A run folder is missing, incomplete, locked or not written by dystop."""

    exit_code = 2


class TrustError(RunFolderError):
    """A run folder or a study of somebody else names code, and the user has not agreed to it."""


class CapacityError(DystopError):
    """The run does not fit into the memory that it may use."""

    exit_code = 2


class TransportError(DystopError):
    """A port, an address or a certificate cannot be used, or a mechanism bears no lost transfer."""

    exit_code = 2


class StorageError(DystopError):
    """The disk refused a write; earlier commits are safe."""

    exit_code = 3


class PlanError(DystopError):
    """A mechanism returned a plan that breaks the contract."""

    exit_code = 4


class UserCodeError(DystopError):
    """A mechanism, model or task of the user's own raised an error or broke its contract."""

    exit_code = 4


class VerificationError(DystopError):
    """A repeated run differs from the recorded one."""

    exit_code = 5


class DivergedError(DystopError):
    """The models of a run have diverged, and it has ended early; its records are kept."""

    exit_code = 7


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return the end of a message that suggests the closest allowed word; empty if none is close.

    >>> nearest("staleness_bond", ["staleness_bound", "V"])
    "; did you mean 'staleness_bound'?"
    >>> nearest("DySTop", ["dystop", "d-psgd"])
    "; did you mean 'dystop'?"
    >>> nearest("fig-nope", ["fig-phases"])
    ''
    """
    close = closest(given, allowed)
    return f"; did you mean {close!r}?" if close else ""


def closest(given: str, allowed: Iterable[str]) -> str | None:
    """Return the closest allowed word, whatever the case of its letters; None if none is close.

    A word is close that a few slips of the keyboard turn into the given one, or that goes on where
    the given one ends.
    """
    spelled, given = {word.lower(): word for word in allowed}, given.lower()
    near = {word: slips for word in spelled if (slips := _near(given, word)) is not None}
    return spelled[min(near, key=lambda word: near[word])] if near else None


def _near(given: str, word: str) -> int | None:
    """Return the slips between two words; None if they are not close."""
    _, dot, ending = given.rpartition(".")
    if dot and word.endswith(dot + ending):  # such as .toml, which says nothing about a name
        given, word = given.removesuffix(dot + ending), word.removesuffix(dot + ending)
    slips, most = _slips(given, word), min(max(len(given) // 3, len(given) > 1), _MOST_SLIPS)
    is_part = len(given) >= _LEAST_PART and (
        min(slips) <= len(given) // _PART_LETTERS or word.endswith(f"-{given}")
    )
    return slips[-1] if slips[-1] <= most or is_part else None


def _slips(one: str, other: str) -> list[int]:
    """Return how many letters are missing, added, wrong or exchanged with the next one.

    Each number is for another beginning of the second word; the last one is for the whole word.

    >>> _slips("rinng", "ring")[-1], _slips("matcah", "matcha")[-1], _slips("", "abc")
    (1, 1, [0, 1, 2, 3])
    """
    before, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        above, row_above = before, row
        before, row = row_above, [i]
        for j, wanted in enumerate(other, start=1):
            least = min(row_above[j] + 1, row[-1] + 1, row_above[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                least = min(least, above[j - 2] + 1)
            row.append(least)
    return row


def shell_command(*words: object) -> str:
    """Return a dystop command whose words are quoted for a shell.

    >>> shell_command("resume", "runs/x"), shell_command("run", "my runs/x.toml", "--name", "NEW")
    ('dystop resume runs/x', "dystop run 'my runs/x.toml' --name NEW")
    """
    return shlex.join(["dystop", *map(str, words)])
