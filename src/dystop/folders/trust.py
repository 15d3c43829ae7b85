"""Whose code a configuration names, and from which folder it is imported.

`model.name = "package.module:factory"`, `task.name = "package.module:Task"` and
`mechanism.name = "package.module:Class"` name code. The keys that decide what is loaded under such
a name count as code, too. A file that the user wrote is the user's word: the code is imported from
the folder of that file. A run folder or a study may come from anybody: its code is imported only if
this user created the folder, or says so with `--trust`. That word holds for one command: `trusting`
is entered where the command begins, and nothing else passes it on within the process.

The proof is a signature that is noted when a folder is created. Its key lies in the user's state
folder, where nobody else can read it, so no content of a folder can forge it.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from dystop.errors import TrustError
from dystop.folders.folder_kinds import INFO, STUDY
from dystop.storage import PRIVATE, try_read_json

SIGNATURE = "signature"  # a key of `run.json`, and of each run in `study.json`
PLAN = "plan"  # the folder of a study that holds its configurations
TRUST = "--trust"  # the word that lets a command import code that the folder of somebody else names
_KEY_BYTES = 32
_trusts = ContextVar("trusts", default=False)


_LOADED = {  # by section: beside its name, keys that decide which code or model is loaded
    "model": ("folder", "python", "base"),
    "task": ("folder",),
    "mechanism": ("folder",),
}


@contextmanager
def trusting(yes: bool = True) -> Iterator[None]:
    """Let a block import code that folders of somebody else name, or not.

    Threads that the block starts are not included.
    """
    before = _trusts.set(yes)
    try:
        yield
    finally:
        _trusts.reset(before)


def trusts() -> bool:
    """Return whether the user has said yes to what this command reads."""
    return _trusts.get()


def words_of_trust(tables: Mapping[str, Any]) -> list[str]:
    """Return the words that let a child import the code of a folder that this process accepts."""
    return [TRUST] if names_code(tables) else []


def names_code(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the code that a configuration names, by its key; empty if all of it is built in.

    >>> names_code({"model": {"name": "mymodel:make"}}), names_code({"model": {"name": "cnn"}})
    ({'model.name': 'mymodel:make'}, {})
    >>> names_code({"model": {"name": "cnn", "python": "/bin/python", "folder": ""}})
    {'model.python': '/bin/python'}
    """
    found = {}
    for section, table in _sections(tables):
        if path := _import_path(table):
            found[f"{section}.name"] = path
        found |= {f"{section}.{k}": str(table[k]) for k in _LOADED[section] if table.get(k)}
    return found


def _sections(tables: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sections that may name code."""
    for section in _LOADED:
        if isinstance(table := tables.get(section), Mapping):
            yield section, table


def _import_path(section: Mapping[str, Any]) -> str:
    """Return the name of a section if it is an import path, else nothing."""
    name = section.get("name")
    return name if isinstance(name, str) and ":" in name else ""


def without_replaced(tables: Mapping[str, Any], replaced: Collection[str]) -> dict[str, Any]:
    """Return the tables without the keys that decide what is loaded under a replaced name.

    >>> without_replaced({"model": {"name": "a:b", "folder": "/theirs"}}, {"model.name"})
    {'model': {'name': 'a:b'}}
    """
    tree = dict(tables)
    for section, table in _sections(tables):
        if f"{section}.name" in replaced:
            dropped = (*_LOADED[section], "base_sha256")  # the digest of the base
            tree[section] = {key: value for key, value in table.items() if key not in dropped}
    return tree


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
    for section, table in _sections(tables):
        if keys is not None and f"{section}.name" not in keys:
            continue
        path = _import_path(table).removeprefix("flower:")  # package.module:app of a Flower app
        top = path.partition(":")[0].partition(".")[0]
        if given := table.get("folder"):
            tree[section] = {**table, "folder": os.path.abspath(beside / str(given))}
        elif top and ((beside / f"{top}.py").is_file() or (beside / top).is_dir()):
            tree[section] = {**table, "folder": os.path.abspath(beside)}
    return tree


def check_code(file: Path, content: bytes, code: Mapping[str, str]) -> None:
    """Refuse code that a run folder or a study of somebody else names.

    Args:
        file: The configuration.
        content: Its bytes.
        code: The code that it names, by key.
    """
    if not code or trusts() or is_own(file, content):
        return
    key, name = next(iter(code.items()))
    raise TrustError(
        f"{file}: {key} = {name!r} names code, or decides which code is loaded, and nothing shows "
        "that you created this folder on this machine; nothing was imported. Read that code. If "
        f"you trust it, put its folder on PYTHONPATH and repeat the command with {TRUST} (in "
        "Python: trust=True)"
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
    return proof_of(content) if names_code(tables) else {}


def proof_of(content: bytes) -> dict[str, str]:
    """Return the entry that proves that this user wrote some content; empty without a key."""
    with suppress(OSError):
        return {SIGNATURE: _signature(content, _create_key())}
    return {}


def is_proof(content: bytes, noted: object) -> bool:
    """Return whether an entry proves that this user wrote some content."""
    try:
        return hmac.compare_digest(_signature(content, _read_key()), str(noted))
    except (OSError, TypeError):
        return False


def is_own(file: Path, content: bytes) -> bool:
    """Return whether the user wrote this file, or created the folder that it lies in."""
    noted = noted_signature(file)
    return noted is None or is_proof(content, noted)


def _signature(content: bytes, key: bytes) -> str:
    return hmac.new(key, b"dystop configuration 1\n" + content, hashlib.sha256).hexdigest()


def secret_id(text: str) -> str:
    """Return an id for a text that nobody without the user's key can compute."""
    try:
        key = _create_key()
    except OSError:  # a home that cannot be written
        key = b""
    said = b"dystop id 1\n" + text.encode(errors="surrogateescape")
    return hmac.new(key, said, hashlib.sha256).hexdigest()[:32]


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
