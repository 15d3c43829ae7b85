"""The worker's checkpoint: one safetensors file that is always whole, and the one before it.

Written beside, flushed to the disk, renamed into place, and the folder flushed; the file that was
there stays as `.1`. The SHA-256 in its header is that of the whole file with 64 zeros in the place
of the digest, so that a single wrong bit anywhere is noticed.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dystop.errors import StorageError
from dystop.serialization import Kinds, from_bytes, pack
from dystop.storage import PRIVATE, remove_temporary_files, write_atomic
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.testbed.worker.state import MailboxEntry, TrainingInFlight, WorkerState

FORMAT = "dystop-worker-1"
_KINDS = Kinds(
    WorkerState=WorkerState,
    Flight=TrainingInFlight,
    Letter=MailboxEntry,
    Report=Report,
    Used=Used,
    Rejected=Rejected,
)
_ZEROS = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a vault held."""

    state: WorkerState | None  # None: nothing that can be used; begin as a new worker
    note: str = ""  # what was wrong, for the log


class CheckpointStore:
    """Where one worker keeps its state. Used by one thread."""

    def __init__(self, path: Path) -> None:
        """Use this file."""
        self.path = path
        self.before = path.with_name(path.name + ".1")

    def save(self, state: WorkerState) -> None:
        """Write the state; raises StorageError where the disk refuses, and what was there stays."""
        try:
            self._write(encode(state))
        except OSError as error:
            why = error.strerror or str(error)
            raise StorageError(
                f"{self.path}: cannot be written: {why}; the checkpoint before is still there. "
                "Free some space: the worker tries again by itself"
            ) from error

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
        """Newest state that is whole, and a note where it is not the last one written."""
        remove_temporary_files(self.path.parent, self.path.name)
        notes: list[str] = []
        for path in (self.path, self.before):
            try:
                return LoadedCheckpoint(decode(path.read_bytes()), "; ".join(notes))
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                notes.append(f"{path.name}: {error}")
        return LoadedCheckpoint(None, "; ".join(notes))


def encode(state: WorkerState) -> bytes:
    """A state as a safetensors file with its own digest."""
    arrays: dict[str, NDArray[Any]] = {}

    def keep(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return None
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value)
        return {"array": name}

    tree = json.dumps(pack(state, _KINDS, keep))
    about = {"format": FORMAT, "run": state.run, "sha256": _ZEROS, "tree": tree}
    blob = save(arrays, metadata=about)
    at = blob.index(f'"sha256":"{_ZEROS}"'.encode()) + len('"sha256":"')
    digest = hashlib.sha256(blob).hexdigest().encode()
    return b"".join((blob[:at], digest, blob[at + len(digest) :]))


def decode(blob: bytes) -> WorkerState:
    """The state; raises ValueError where a single bit is not as it was written."""
    length = int.from_bytes(blob[:8], "little")
    found = _DIGEST.search(blob, 8, 8 + length)
    if found is None:
        raise ValueError("no digest is found; the file is damaged")
    whole = hashlib.sha256(blob[: found.start(1)])
    whole.update(_ZEROS.encode())
    whole.update(memoryview(blob)[found.end(1) :])
    if whole.hexdigest().encode() != found[1]:
        raise ValueError("the digest is wrong; the file is damaged")
    about = json.loads(blob[8 : 8 + length])["__metadata__"]
    if about.get("format") != FORMAT:
        raise ValueError("not a worker's checkpoint")
    state = from_bytes(blob, _KINDS)
    if not isinstance(state, WorkerState):
        raise ValueError("not a worker's checkpoint")
    return state
