"""Whose code a configuration names, and from which folder it is imported.

`model.name = "package.module:factory"` and `task.name = "package.module:Task"` name code. A file
that the user wrote is the user's word: the code is imported from the folder of that file. A run
folder or a study may come from anybody: its code is imported only if this user created the folder,
or says so with `--trust`.

The proof is a signature that is noted when a folder is created. Its key lies in the user's state
folder, where nobody else can read it, so no content of a folder can forge it.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dystop.errors import TrustError
from dystop.experiments.folders.folder_kinds import INFO, STUDY
from dystop.storage import PRIVATE, try_read_json

SIGNATURE = "signature"  # a key of `run.json`, and of each run in `study.json`
PLAN = "plan"  # the folder of a study that holds its configurations
_KEY_BYTES = 32


SECTIONS = ("model", "task")  # whose `name` may be code


def names_code(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the code that a configuration names, by its key; empty if all names are built in.

    >>> names_code({"model": {"name": "mymodel:make"}}), names_code({"model": {"name": "cnn"}})
    ({'model.name': 'mymodel:make'}, {})
    """
    found = {}
    for section in SECTIONS:
        table = tables.get(section)
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str) and ":" in name:
            found[f"{section}.name"] = name
    return found


def with_folder(
    tables: Mapping[str, Any], beside: Path, keys: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the tables with the absolute `folder` of code that lies in this folder.

    Code that does not lie there is an installed package, or is found by PYTHONPATH.

    Args:
        tables: Values by section.
        beside: The folder.
        keys: Of the code in question, such as "model.name"; all by default.
    """
    tree = dict(tables)
    for key, name in names_code(tables).items():
        section = key.partition(".")[0]
        path = name.removeprefix("flower:")  # package.module:app of a Flower app
        table, top = tree[section], path.partition(":")[0].partition(".")[0]
        if keys is not None and key not in keys:
            continue
        if given := table.get("folder"):
            tree[section] = {**table, "folder": os.path.abspath(beside / str(given))}
        elif top and ((beside / f"{top}.py").is_file() or (beside / top).is_dir()):
            tree[section] = {**table, "folder": os.path.abspath(beside)}
    return tree


def check_code(file: Path, content: bytes, code: Mapping[str, str], *, trust: bool) -> None:
    """Refuse code that a run folder or a study of somebody else names.

    Args:
        file: The configuration.
        content: Its bytes.
        code: The code that it names, by key.
        trust: Whether the user said yes.
    """
    if trust or not code or _is_own(content, noted_signature(file)):
        return
    key, name = next(iter(code.items()))
    raise TrustError(
        f"{file}: {key} = {name!r} names code, and nothing shows that you created this folder "
        "on this machine; nothing was imported. Read that code. If you trust it, put its folder on "
        "PYTHONPATH and repeat the command with --trust (in Python: trust=True)"
    )


def noted_signature(file: Path) -> str | None:
    """Return the signature that a run folder or a study notes; None for a file outside of them."""
    if os.path.isfile(file.parent / INFO):
        return str(try_read_json(file.parent / INFO).get(SIGNATURE, ""))
    study = file.parent.parent / STUDY
    if file.parent.name != PLAN or not os.path.isfile(study):
        return None
    rows = try_read_json(study).get("runs")
    rows = rows if isinstance(rows, list) else []
    named = (r for r in rows if isinstance(r, Mapping) and r.get("folder") == file.stem)
    return str(next(named, {}).get(SIGNATURE, ""))


def signature_of(content: bytes, tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry that proves who created a configuration; empty if it names no code.

    It is empty, too, where the user has no folder for the key: then `--trust` is needed later.
    """
    if not names_code(tables):
        return {}
    with suppress(OSError):
        return {SIGNATURE: _signature(content, _create_key())}
    return {}


def _is_own(content: bytes, noted: str | None) -> bool:
    """Return whether the user wrote this file, or created the folder that it lies in."""
    if noted is None:
        return True
    try:
        return hmac.compare_digest(_signature(content, _read_key()), noted)
    except (OSError, TypeError):
        return False


def _signature(content: bytes, key: bytes) -> str:
    return hmac.new(key, b"dystop configuration 1\n" + content, hashlib.sha256).hexdigest()


def key_file() -> Path:
    """Return where the user's key lies: in the state folder, by the convention of XDG."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "dystop" / "run.key"


def _read_key() -> bytes:
    """Return the key; raise OSError if there is none, or if others could read or replace it."""
    handle = os.open(key_file(), os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        about, key = os.fstat(handle), file.read(_KEY_BYTES + 1)
    if about.st_uid != os.geteuid() or about.st_mode & 0o077 or len(key) != _KEY_BYTES:
        raise PermissionError(f"{key_file()}: not a private key")
    return key


def _create_key() -> bytes:
    """Return the key; make one if there is none. Of two processes, both get the same."""
    path = key_file()
    with suppress(OSError):
        return _read_key()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    return _read_key()
