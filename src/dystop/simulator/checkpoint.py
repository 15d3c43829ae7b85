"""Checkpoints: one safetensors file per kept round.

A file under its final name is always whole (`storage.write_atomic`), and it contains the digest of
all its bytes (`dystop.sealed`). A process that is killed while it writes leaves a temporary file,
which the next start removes. Arrays are tensors of the file, everything else is JSON in its header;
there is no pickle.
"""

import json
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dystop.errors import RunFolderError
from dystop.exchange.codecs import PublicVersions
from dystop.exchange.rules import Memory
from dystop.foreign_files import folder_within, open_regular, opened_path
from dystop.format import FORMAT, other_format
from dystop.recorders.recorder import Memories
from dystop.sealed import FIELD, UNSEALED, check_seal, read_header, seal
from dystop.serialization import UNREADABLE, Kinds, pack, unpack
from dystop.simulator.model_stack import Models, Trainings
from dystop.simulator.state import State
from dystop.sparse import Floats, Graph, PairCounts
from dystop.storage import remove_temporary_files, write_atomic
from dystop.types import ControlState, Mailbox, Outcome
from dystop.world import InFlight, Messages, Progress

KEPT = 2


@dataclass(frozen=True)
class StoredState:
    """A `State` as files hold it."""

    control: ControlState
    started_s: Floats
    training_s: Floats
    messages: Messages
    models: Models
    next_evaluation_s: float
    snapshots_made: int
    versions: PublicVersions | None = None
    memories: Memories = ()


def _to_stored(state: State) -> StoredState:
    progress = state.progress
    return StoredState(
        control=state.control,
        started_s=progress.started_s,
        training_s=progress.training_s,
        messages=progress.in_flight.messages(),
        models=state.models,
        next_evaluation_s=state.next_evaluation_s,
        snapshots_made=state.snapshots_made,
        versions=state.versions,
        memories=state.memories,
    )


def _from_stored(stored: StoredState) -> State:
    return State(
        control=stored.control,
        progress=Progress(stored.started_s, stored.training_s, InFlight(stored.messages)),
        models=stored.models,
        next_evaluation_s=stored.next_evaluation_s,
        snapshots_made=stored.snapshots_made,
        versions=stored.versions,
        memories=stored.memories,
    )


_KINDS = Kinds(
    StoredState,
    ControlState,
    Models,
    Memory,
    Trainings,
    Messages,
    Outcome,
    PairCounts,
    Graph,
    Mailbox,
    PublicVersions,
)


def _pack(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Turn a value into JSON and put its arrays into `tensors`; `where` is for messages only."""

    def keep(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tag, tensor = "tensor", value.detach().to("cpu").contiguous()
        elif isinstance(value, np.ndarray) and value.dtype != object:
            tag, tensor = "array", torch.from_numpy(np.array(value, order="C"))
        else:
            return None
        name = str(len(tensors))  # names made of keys could collide
        tensors[name] = tensor
        return {tag: name}

    return pack(value, _KINDS, keep, where)


def _unpack(packed: Any, tensors: dict[str, torch.Tensor], device: torch.device) -> Any:
    def take(tag: str, name: str) -> Any:
        return tensors[name].to(device) if tag == "tensor" else tensors[name].numpy()

    return unpack(packed, _KINDS, take)


def save(folder: Path, state: State, records: str = "") -> Path:
    """Write the state after a round; keep only the newest `KEPT` files. Return the new file.

    Args:
        folder: The checkpoints of the run; created if it is missing.
        state: What to write.
        records: Length and digest of the record log at this moment; `load_newest` returns it.
    """
    done = state.control.t - 1
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_pack(_to_stored(state), "state", tensors))
    name = f"round-{done:08d}.safetensors"
    header = {"format": str(FORMAT), "records": records, FIELD: UNSEALED, "tree": tree}

    def write(path: Path) -> None:
        save_file(tensors, path, metadata=header)
        with path.open("r+b") as file:
            seal(file)

    with folder_within(folder.parent, folder.name, create=True) as inside:
        write_atomic(inside / name, write)
        for old in _names(inside)[KEPT:]:
            (inside / old).unlink()
    return folder / name


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    with suppress(FileNotFoundError), folder_within(folder.parent, folder.name) as inside:
        return [folder / name for name in _names(inside)]
    return []


def _names(inside: Path) -> list[str]:
    """Return the names of the checkpoints in a folder, newest first."""
    return sorted((path.name for path in inside.glob("round-*.safetensors")), reverse=True)


def round_of(checkpoint: Path) -> int:
    """Return the last round that a checkpoint contains."""
    return int(checkpoint.stem.removeprefix("round-"))


def checked_mark(checkpoint: Path) -> str:
    """Return what `save` was given about the record log; raise ValueError if a bit has changed."""
    try:
        with open_regular(checkpoint) as file:
            return _check(file)["records"]
    except UNREADABLE as error:
        raise ValueError(f"not a checkpoint: {error}") from error


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read."""

    round: int  # the last round that it contains
    state: State
    records: str  # what `save` was given


def load_newest(folder: Path, device: torch.device) -> Loaded | None:
    """Return the newest checkpoint that is whole; None where there is none yet.

    A damaged checkpoint is skipped with a warning.

    Raises:
        RunFolderError: A checkpoint has another format. Or there are checkpoints and all are
            damaged: resuming would start over and cut the records away.
    """
    try:
        with folder_within(folder.parent, folder.name) as inside:
            return _load_newest(folder, inside, device)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or folder}: this checkpoint cannot be read: {error.strerror or error}"
        ) from error


def _load_newest(folder: Path, inside: Path, device: torch.device) -> Loaded | None:
    remove_temporary_files(inside)
    for stray in inside.glob(".tmp*"):  # safetensors writes through a temporary file of its own
        stray.unlink(missing_ok=True)
    damaged = []
    for name in _names(inside):
        try:
            loaded = _load(inside / name, device)
        except ValueError as error:
            damaged.append(f"{name} is damaged ({error})")
            continue
        if damaged:
            warnings.warn(
                f"{folder}: {'; '.join(damaged)}; the run resumes after round {loaded.round}, from "
                f"the checkpoint before",
                stacklevel=2,
            )
        return loaded
    if damaged:
        raise RunFolderError(
            f"{folder}: no checkpoint can be used: {'; '.join(damaged)}; to start over from round "
            f"1, which gives the same records again, delete {folder}"
        )
    return None


def _load(path: Path, device: torch.device) -> Loaded:
    """Return a checkpoint; raise ValueError if it is damaged."""
    try:
        with open_regular(path) as opened:
            header = _check(opened)
            with safe_open(opened_path(opened.fileno(), path), framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        stored: StoredState = _unpack(json.loads(header["tree"]), tensors, device)
    except UNREADABLE as error:
        raise ValueError(f"not a checkpoint: {error}") from error
    return Loaded(round_of(path), _from_stored(stored), header["records"])


def _check(file: BinaryIO) -> dict[str, str]:
    """Return the metadata of a checkpoint, after its digest was found to be correct."""
    check_seal(file)
    header: dict[str, str] = json.loads(read_header(file))["__metadata__"]
    if header["format"] != str(FORMAT):
        raise RunFolderError(other_format("the checkpoint", header["format"]))
    return header
