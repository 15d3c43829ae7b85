"""Checkpoints: one safetensors file per kept round, written beside and renamed into place.

A file under its final name is always whole: it is written to a temporary name, flushed to the disk,
then renamed. A process killed in the middle leaves a temporary file that the next start removes. No
pickle: arrays are tensors of the file, everything else is JSON in its header.
"""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dystop.engine.models import Models
from dystop.engine.post import Post
from dystop.engine.state import State
from dystop.errors import RunFolderError
from dystop.sparse import Graph, PairCounts
from dystop.types import Books, Mailbox, Outcome

KEPT = 2
_FORMAT = "dystop-state-1"
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (State, Books, Models, Post, Outcome, PairCounts, Graph, Mailbox)
}


def _pack(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Turn a value into JSON, moving its arrays into `tensors`; `where` is for messages only."""
    if isinstance(value, torch.Tensor):
        return {"tensor": _keep(value.detach().to("cpu").contiguous(), tensors)}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"array": _keep(torch.from_numpy(np.array(value, order="C")), tensors)}
    if type(value).__name__ in _KINDS:
        inside = {f.name: getattr(value, f.name) for f in fields(value)}
        packed = {k: _pack(v, f"{where}/{k}", tensors) for k, v in inside.items()}
        return {"kind": type(value).__name__, "fields": packed}
    if isinstance(value, dict) and all(type(k) in (str, int) for k in value):
        return {"map": [[k, _pack(v, f"{where}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        tag = "tuple" if isinstance(value, tuple) else "list"
        return {tag: [_pack(v, f"{where}/{k}", tensors) for k, v in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    raise TypeError(f"{where}: {type(value).__name__} cannot be kept in a checkpoint")


def _keep(tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    """Give a tensor a number of its own; names made of keys could collide."""
    name = str(len(tensors))
    tensors[name] = tensor
    return name


def _unpack(packed: Any, tensors: dict[str, torch.Tensor], device: torch.device) -> Any:
    (tag, inside), *rest = packed.items()
    if tag == "tensor":
        return tensors[inside].to(device)
    if tag == "array":
        return tensors[inside].numpy()
    if tag == "kind":
        values = {k: _unpack(v, tensors, device) for k, v in rest[0][1].items()}
        return _KINDS[inside](**values)
    if tag == "map":
        return {k: _unpack(v, tensors, device) for k, v in inside}
    if tag in ("list", "tuple"):
        values_ = (_unpack(v, tensors, device) for v in inside)
        return list(values_) if tag == "list" else tuple(values_)
    return inside


def save(folder: Path, state: State) -> Path:
    """Write the state after its last round; keep the newest `KEPT` files."""
    folder.mkdir(exist_ok=True)
    done = state.books.t - 1
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_pack(state, "state", tensors))
    final = folder / f"round-{done:08d}.safetensors"
    temporary = folder / f".{final.name}.tmp"
    save_file(tensors, temporary, metadata={"format": _FORMAT, "tree": tree})
    _flush(temporary)
    os.replace(temporary, final)
    _flush(folder)
    for old in checkpoints(folder)[KEPT:]:
        old.unlink()
    return final


def _flush(path: Path) -> None:
    """Make sure that what was written has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def round_of(checkpoint: Path) -> int:
    """Last round that a checkpoint contains."""
    return int(checkpoint.stem.removeprefix("round-"))


def load_newest(folder: Path, device: torch.device) -> tuple[int, State] | None:
    """Newest checkpoint that can be read; a damaged one is passed over for the one before.

    None where there is none yet. If there are some and all are damaged, going on is refused: it
    would start over and cut the records away.
    """
    for stray in folder.glob(".*.tmp"):
        stray.unlink()
    kept = checkpoints(folder)
    for path in kept:
        state = _load(path, device)
        if state is not None:
            return round_of(path), state
    if kept:
        raise RunFolderError(
            f"{kept[0]}: damaged, and so is every other checkpoint of this run; to start over from"
            f" round 1, which gives the same records again, delete {folder}"
        )
    return None


def _load(path: Path, device: torch.device) -> State | None:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                return None
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        state: State = _unpack(json.loads(header["tree"]), tensors, device)
    except (SafetensorError, KeyError, ValueError):
        return None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error
    return state
