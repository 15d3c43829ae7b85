"""The worker's checkpoint: one safetensors file that is always whole, and the previous one.

A save writes a temporary file, flushes it to disk, renames it and flushes the folder. The previous
checkpoint stays as `.1`. The file is sealed (`dystop.sealed`): a single wrong bit is detected.
"""

import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dystop.errors import RunFolderError, StorageError
from dystop.foreign_files import MODEL_BYTES, read_bounded
from dystop.format import FORMAT, other_format
from dystop.model_state import ModelState
from dystop.sealed import FIELD, UNSEALED, check_seal, read_header, seal
from dystop.serialization import UNREADABLE, Kinds, from_bytes, pack
from dystop.storage import PRIVATE, remove_temporary_files, write_atomic
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.testbed.worker.state import MailboxEntry, RunningTraining, WorkerState

_KINDS = Kinds(WorkerState, ModelState, RunningTraining, MailboxEntry, Report, Used, Rejected)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The result of loading a checkpoint."""

    state: WorkerState | None  # None: no usable checkpoint
    note: str = ""  # what is wrong with the files, for the log


class CheckpointStore:
    """The checkpoint files of one worker. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = path.with_name(path.name + ".1")

    def save(self, state: WorkerState) -> None:
        """Write the state. Raises StorageError if the disk refuses; the old checkpoint stays."""
        try:
            self._write(encode_state(state))
        except OSError as error:
            why = error.strerror or str(error)
            raise StorageError(
                f"{self.path}: cannot be written: {why}; the previous checkpoint is intact. "
                "Free some space: the worker retries by itself"
            ) from error

    def start_save(self, state: WorkerState) -> "Future[None]":
        """Save in a thread of its own; the future ends as `save` does. One save at a time."""
        future: Future[None] = Future()

        def write() -> None:
            try:
                self.save(state)
            except BaseException as error:  # whoever waits for the future raises it
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=write, name="saving", daemon=True).start()
        return future

    def _write(self, blob: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            self.path,
            blob,
            mode=PRIVATE,
            previous=self.before,
            on_step=lambda step: reach(f"vault.{step}"),
        )

    def load(self) -> LoadedCheckpoint:
        """Return the newest whole state, with a note if it is not the last one written.

        Raises:
            RunFolderError: It has another format.
        """
        remove_temporary_files(self.path.parent, self.path.name)
        notes: list[str] = []
        for path in (self.path, self.before):
            try:
                return LoadedCheckpoint(
                    decode_state(read_bounded(path, MODEL_BYTES)), "; ".join(notes)
                )
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                notes.append(f"{path.name} is damaged: {error}")
        return LoadedCheckpoint(None, "; ".join(notes))


def encode_state(state: WorkerState) -> bytes:
    """Return a state as a safetensors file that contains its own digest."""
    arrays: dict[str, NDArray[Any]] = {}

    def keep(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return None
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value)
        return {"array": name}

    tree = json.dumps(pack(state, _KINDS, keep))
    about = {"format": str(FORMAT), "run": state.run, FIELD: UNSEALED, "tree": tree}
    file = BytesIO(save(arrays, metadata=about))
    seal(file)
    return file.getvalue()


def decode_state(blob: bytes) -> WorkerState:
    """Return the state.

    Raises:
        ValueError: A single bit differs from what was written.
        RunFolderError: It has another format.
    """
    file = BytesIO(blob)
    check_seal(file)
    try:
        found = json.loads(read_header(file))["__metadata__"]["format"]
    except UNREADABLE as error:
        raise ValueError(f"not a worker's checkpoint: {error!r}") from error
    if found != str(FORMAT):
        raise RunFolderError(other_format("the worker's checkpoint", found))
    state = from_bytes(blob, _KINDS)
    if not isinstance(state, WorkerState):
        raise ValueError("not a worker's checkpoint")
    return state
