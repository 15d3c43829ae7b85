"""The run folder: its files, and how to create and read it.

    runs/NAME/
      config.toml     the fully resolved configuration
      run.json        versions, seed, status, why it stopped, fingerprints of settings and records
      fleet.json      data sizes, label counts and positions of the workers
      records.jsonl   one line per round
      late_scores.jsonl   scores that came after their record (testbed only)
      checkpoints/    saved states, from which `dystop resume` starts

A folder is prepared under a hidden name and then renamed, so a folder with its final name is
complete.
"""

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dystop.errors import RunFolderError, StorageError, nearest
from dystop.folders.environment import machine, versions
from dystop.folders.folder_kinds import (
    INFO,
    STUDY,
    FolderKind,
    kind_of,
    study_kind,
    writing,
)
from dystop.folders.late_scores import LATE_SCORES, read_late_scores, with_late_scores
from dystop.folders.record_log import (
    RECORDS,
    RecordLog,
    RunLock,
    is_abandoned,
    read_lines,
    records_sha256,
)
from dystop.folders.trust import signature_of
from dystop.foreign_files import JSON_BYTES, read_bounded
from dystop.format import FORMAT, other_format
from dystop.record import RoundRecord
from dystop.storage import NO_PERMISSION, NO_SPACE, file_sha256, read_json, write_atomic
from dystop.types import provenance_of

if TYPE_CHECKING:
    from dystop.config import Experiment

__all__ = [
    "INFO",
    "STUDY",
    "RecordLog",
    "RunData",
    "RunLock",
    "check_config",
    "check_format",
    "check_free",
    "check_name",
    "config_facts",
    "create_run",
    "first_info",
    "is_abandoned",
    "is_study",
    "log_was_changed",
    "name_problem",
    "not_created",
    "open_config",
    "open_run",
    "record_fingerprints",
    "records_sha256",
    "removed_if_unused",
    "run_folder",
    "update_info",
    "write_atomic",
    "writing",
]

CONFIG, FLEET, CHECKPOINTS = "config.toml", "fleet.json", "checkpoints"
MODELS, GLOBAL = "models", "global.safetensors"  # a folder of trained models, and a file in it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,99}")
_CONFIG_SHA256, _RECORDS_SHA256 = "config_sha256", "records_sha256"  # keys of run.json
_NUMBERS = {"data_size": 1, "label_counts": 2, "positions": 2, "area_m": 1}  # axes, fleet.json
_LATE_SCORES_SHA256 = "late_scores_sha256"
_CONTENTS = "a run folder holds config.toml, run.json, fleet.json and records.jsonl"
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


@dataclass(frozen=True)
class RunData:
    """A run, read back from its folder."""

    path: Path
    name: str
    config: dict[str, Any]
    info: dict[str, Any]
    fleet: dict[str, Any]
    records: list[RoundRecord]


def name_problem(name: str) -> str:
    """Return which names are allowed if this one is not; return "" if it is."""
    if _NAME.fullmatch(name):
        return ""
    return "at most 100 letters, digits and ._+=@-, beginning with a letter or digit"


def check_name(name: str) -> None:
    """Refuse a name that is not allowed for a run folder."""
    if problem := name_problem(name):
        raise RunFolderError(f"--name {name!r} cannot name a run; expected {problem}")


def first_info(experiment: "Experiment") -> dict[str, Any]:
    """Return the content of `run.json` at the start of a run."""
    mechanism = experiment.mechanism
    return {
        "format": FORMAT,
        "name": experiment.name,
        "status": "running",
        "stop_reason": None,
        "seed": experiment.seed,
        "mechanism": {
            "name": mechanism.name,
            "mode": mechanism.capabilities().mode,
            "provenance": provenance_of(mechanism),
            "summary": mechanism.summary,
            "parameters": asdict(mechanism),
        },
        "timing": experiment.engine.timing,
        "publish": experiment.engine.publish,
        "wall_s": 0.0,
        _RECORDS_SHA256: None,
        "versions": versions(),
        "machine": machine(),
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _compact_json(value: Mapping[str, Any]) -> bytes:
    """Return JSON without spaces: a fleet may have millions of numbers."""
    return (json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _taken(folder: Path) -> RunFolderError:
    kind = kind_of(folder)
    if kind is None:
        return RunFolderError(
            f"{folder}: already exists and is not a run; choose another --name or --out"
        )
    return RunFolderError(
        f"{folder}: this {kind.noun} already exists; choose another --name, or resume it with: "
        f"{kind.resume_command(folder)}"
    )


def _candidates(out: Path, name: str, explicit: bool) -> Iterator[Path]:
    """Yield folders to try: NAME, then NAME-2, NAME-3 ... unless the user chose the name."""
    yield out / name
    if explicit:
        raise _taken(out / name)
    number = 2
    while True:
        yield out / f"{name}-{number}"
        number += 1


def _place(prepared: Path, out: Path, name: str, explicit: bool) -> Path:
    """Rename the prepared folder to the first free name; two processes never share one."""
    for folder in _candidates(out, name, explicit):
        if os.path.lexists(folder):
            continue
        try:
            prepared.rename(folder)
        except OSError as error:
            if error.errno in _TAKEN:
                continue
            raise
        return folder
    raise AssertionError("unreachable: candidates never end")


def _fill(folder: Path, config: str, info: Mapping[str, Any], fleet: Mapping[str, Any]) -> None:
    folder.chmod(0o755)
    (folder / CHECKPOINTS).mkdir()
    (folder / RECORDS).touch()
    write_atomic(folder / CONFIG, config.encode())
    write_atomic(folder / FLEET, _compact_json(fleet))
    write_atomic(folder / INFO, _json({**info, **config_facts(config)}))


def config_facts(config: str) -> dict[str, str]:
    """Return what `run.json` notes about the text of `config.toml`: digest and signature."""
    content = config.encode()
    digest = {_CONFIG_SHA256: hashlib.sha256(content).hexdigest()}
    return digest | signature_of(content, tomllib.loads(config))


def not_created(folder: Path, error: OSError) -> RunFolderError | StorageError:
    """Return the error for a folder that could not be created: a refused write, or a wrong path."""
    reason = f"{folder}: cannot be created: {error.strerror or error}"
    if error.errno in NO_SPACE:
        return StorageError(f"{reason}. Free space, or choose another folder with --out DIR")
    kind = StorageError if error.errno in NO_PERMISSION else RunFolderError
    return kind(f"{reason}. Choose another folder with --out DIR")


def check_free(out: Path, name: str) -> None:
    """Refuse a name that is taken, before any data are loaded."""
    check_name(name)
    if os.path.lexists(out / name):
        raise _taken(out / name)


def create_run(
    out: Path,
    name: str,
    config: str,
    info: Mapping[str, Any],
    fleet: Mapping[str, Any],
    *,
    explicit: bool = False,
) -> Path:
    """Create the folder of a new run and return it; an error leaves no folder behind.

    Args:
        out: Folder of all runs; created if it is missing.
        name: Name of the run.
        config: Text of `config.toml`.
        info: First content of `run.json`.
        fleet: Content of `fleet.json`.
        explicit: Whether the user chose this name; then no number is appended if it is taken.
    """
    check_name(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        prepared = Path(tempfile.mkdtemp(prefix=f".{name}.tmp-{os.getpid()}-", dir=out))
    except OSError as error:
        raise not_created(out / name, error) from error
    try:
        _fill(prepared, config, info, fleet)
        return _place(prepared, out, name, explicit)
    except OSError as error:
        raise not_created(out / name, error) from error
    finally:
        shutil.rmtree(prepared, ignore_errors=True)


@contextmanager
def removed_if_unused(folder: Path) -> Iterator[None]:
    """Remove a new run folder if the block fails before it has written a record."""
    try:
        yield
    except Exception:
        records = folder / RECORDS
        if not records.is_file() or not records.stat().st_size:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def update_info(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change some entries of `run.json` in one atomic write; return its new content."""
    info = {**read_json(folder / INFO), **changes}
    with writing(folder):
        write_atomic(folder / INFO, _json(info))
    return info


def open_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a run as plain tables."""
    path = folder / CONFIG
    try:
        return tomllib.loads(read_bounded(path, JSON_BYTES).decode())
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not TOML, the file is damaged: {error}") from None


def _runs_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        p.parent.name for p in folder.glob(f"*/{INFO}") if not p.parent.name.startswith(".")
    )


def _absent(path: Path) -> RunFolderError:
    if path.name in _runs_in(Path("runs")):
        return RunFolderError(f"{path}: no such folder; did you mean '{Path('runs') / path.name}'?")
    return RunFolderError(f"{path}: no such folder{nearest(path.name, _runs_in(path.parent))}")


def _several(path: Path, kind: FolderKind) -> RunFolderError:
    inside = _runs_in(path)
    hint = f"; its runs are folders in it, such as {path / inside[-1]}" if inside else ""
    return RunFolderError(
        f"{path}: is a {kind.noun}, not a run; resume it with: {kind.resume_command(path)}{hint}"
    )


def is_study(path: Path) -> bool:
    """Return whether this folder is a comparison or a sweep."""
    return os.path.isfile(path / STUDY)  # False, not an error, for a name too long to exist


def run_folder(path: Path) -> Path:
    """Return the path if it is a complete run folder; otherwise raise an error that says why."""
    if not path.exists():
        raise _absent(path)
    needed = [CONFIG, INFO, FLEET]
    missing = [name for name in needed if not (path / name).is_file()]
    if study := study_kind(path):
        raise _several(path, study)
    if not path.is_dir() or missing == needed:
        inside = _runs_in(path)
        hint = f". It holds runs: name one, such as {path / inside[-1]}" if inside else ""
        raise RunFolderError(f"{path}: not a run folder; {_CONTENTS}{hint}")
    if missing:
        raise RunFolderError(
            f"{path}: incomplete, {' and '.join(missing)} missing; the run cannot be used. "
            "Delete the folder and run the experiment again"
        )
    return path


def open_run(path: Path) -> RunData:
    """Read the folder of a run, finished or not; skip an incomplete last record.

    The records have the scores that came after them.
    """
    path = run_folder(path)
    config, info = open_config(path), read_json(path / INFO)
    check_format(path / INFO, info)
    records = with_late_scores(read_lines(path)[0], read_late_scores(path))
    name = path.resolve().name
    return RunData(path, name, config, info, _read_fleet(path / FLEET), records)


def check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse the metadata of a run or a study that has another format than this version."""
    if (found := content.get("format")) != FORMAT:
        raise RunFolderError(other_format(path, found))


def _read_fleet(path: Path) -> dict[str, Any]:
    """Read `fleet.json`; refuse lists of numbers that are none."""
    fleet = read_json(path)
    for key, axes in _NUMBERS.items():
        if key not in fleet:
            continue
        try:
            good = isinstance(fleet[key], list) and np.array(fleet[key], float).ndim == axes
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            what = "lists of numbers, all equally long" if axes > 1 else "numbers"
            raise RunFolderError(f"{path}: {key} is damaged; expected a list of {what}")
    physics = fleet.get("physics", {})
    if not isinstance(physics, dict) or not all(isinstance(v, str) for v in physics.values()):
        raise RunFolderError(f"{path}: physics is damaged; expected texts by name")
    return fleet


def check_config(run: RunData, start: str) -> None:
    """Refuse a configuration that was changed; `start` is the command that starts a new run."""
    file, noted = run.path / CONFIG, run.info.get(_CONFIG_SHA256)
    if noted != file_sha256(file, JSON_BYTES):
        raise RunFolderError(
            f"{file}: was changed after the run began; a run can only be resumed with its original "
            f"settings. Restore the file, or start a new run with: {start} "
            f"{shlex.quote(str(file))} --name NEW"
        )


def log_was_changed(run: RunData) -> bool:
    """Return whether records or late scores of a finished run differ from their fingerprints."""
    if run.info.get(_RECORDS_SHA256) is None or run.info.get("status") != "finished":
        return False
    found = record_fingerprints(run.path)
    return any(run.info.get(key, found[key]) != found[key] for key in found)


def record_fingerprints(folder: Path) -> dict[str, str | None]:
    """Return the fingerprints of records and late scores as `run.json` has them."""
    names = {_RECORDS_SHA256: RECORDS, _LATE_SCORES_SHA256: LATE_SCORES}
    paths = {key: folder / name for key, name in names.items()}
    return {key: file_sha256(path) if path.is_file() else None for key, path in paths.items()}
