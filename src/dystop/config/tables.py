"""The plain tables of a configuration: from TOML files and `key=value` words.

Nothing here knows which values are allowed.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError, nearest, shell_command
from dystop.folders.folder_kinds import RUN, kind_of, study_kind
from dystop.folders.run_folder import CONFIG, INFO
from dystop.folders.trust import (
    check_code,
    is_own,
    names_code,
    noted_signature,
    with_folder,
    without_replaced,
)
from dystop.foreign_files import JSON_BYTES, read_bounded

EXECUTOR_TABLES = ("slurm", "ray")
"""Tables of a configuration file that say where runs run. They are no part of the experiment."""


def load_file(
    file: Path, *, replaced: Set[str] = frozenset(), imports: bool = True
) -> dict[str, Any]:
    """Read the tree of a TOML file; refuse code that a folder of somebody else names.

    Args:
        file: The file.
        replaced: Keys that get another value, so that their code is not imported. What a file of
            somebody else says about the code of a replaced name is left out.
        imports: Whether the caller imports the code; if it does not, no code is refused.
    """
    if os.path.isdir(file):  # unlike Path.is_dir, never raises
        raise _folder_instead_of_file(file)
    content, tree = parse_file(file)
    tree = {name: table for name, table in tree.items() if name not in EXECUTOR_TABLES}
    if replaced and not is_own(file, content):
        tree = without_replaced(tree, replaced)
    code = {key: name for key, name in names_code(tree).items() if key not in replaced}
    if imports:
        check_code(file, content, code)
    if noted_signature(file) is not None:
        return tree
    for key in replaced & names_code(tree).keys():  # code that is not looked for beside this file
        tree, _ = without(tree, key.split("."))
    return with_folder(tree, file.parent)


def parse_file(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a TOML file and its tree; a byte-order mark is skipped."""
    try:
        content = read_bounded(file, JSON_BYTES, follow=True)  # the user has named it
        return content, tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        beside = [p.name for p in file.parent.glob("*.toml") if p.is_file()]
        raise ConfigError(f"{file}: no such file{nearest(file.name, beside)}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # also an integer of thousands of digits
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not usable TOML: nested too deeply") from None


def _folder_instead_of_file(path: Path) -> ConfigError:
    if study := study_kind(path):
        resume = study.resume_command(path)
        return ConfigError(f"{path}: is the folder of a {study.noun}; resume it with: {resume}")
    if not os.path.isfile(path / INFO):
        return ConfigError(f"{path}: is a folder; expected a TOML file, as in {path / 'FILE.toml'}")
    kind = kind_of(path) or RUN
    return ConfigError(
        f"{path}: is the folder of a {kind.noun}; run its settings again with: "
        f"{shell_command(kind.start, path / CONFIG)}, resume it with: "
        f"{kind.resume_command(path)}, or check it with: {shell_command(kind.check, path)}"
    )


def split_override(word: str, origin: str) -> tuple[str, Any]:
    """Split one `key=value` word; errors name the origin."""
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{origin}: {word!r} is not key=value, as in stop.rounds=100")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{origin}: {key} = {text!r}; expected UTF-8 text") from None
    return key, _override_value(text.strip())


def _override_value(text: str) -> Any:
    """Read a TOML value; a bare word or a date is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    usable = isinstance(parsed["value"], (str, int, float, bool, list, dict)) and len(parsed) == 1
    return parsed["value"] if usable else text


def merge(old: Any, new: Any) -> Any:
    """Join tables; a new value replaces an old one."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{k: merge(old[k], v) if k in old else v for k, v in new.items()}}


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the tables in which a dotted key has this value.

    >>> nested("stop.rounds", 5)
    {'stop': {'rounds': 5}}
    """
    for part in reversed(key.split(".")):
        value = {part: value}
    tables: dict[str, Any] = value
    return tables


def without(tree: Any, path: Sequence[str]) -> tuple[Any, Any]:
    """Return nested tables without one value, and the value; None if it is not there."""
    if not isinstance(tree, Mapping) or path[0] not in tree:
        return tree, None
    if len(path) == 1:
        return {k: v for k, v in tree.items() if k != path[0]}, tree[path[0]]
    inside, value = without(tree[path[0]], path[1:])
    return {**tree, path[0]: inside}, value


def is_executor_word(word: str) -> bool:
    """Return whether a `key=value` word sets a key of an executor; a file is no such word.

    >>> is_executor_word("slurm.partition=gpu"), is_executor_word("slurm.toml")
    (True, False)
    """
    key, sets, _ = word.partition("=")
    table, dot, _ = key.strip().partition(".")
    return bool(sets and dot) and table in EXECUTOR_TABLES
