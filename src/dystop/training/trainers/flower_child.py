"""Runs a Flower `ClientApp` for all workers, one message after another.

A process of its own, often with another Python (`model.python`): it imports flwr and nothing of
dystop. Requests come on standard input and answers leave on what was standard output; what the app
prints goes to standard error. A frame is the length of a JSON header, the header, and arrays.

    python flower_child.py package.module:app FOLDER WORKERS
"""

import json
import os
import signal
import struct
import sys
import traceback
from importlib import import_module
from typing import IO, Any

import numpy as np

LENGTH = struct.Struct("<Q")
LOSSES = ("train_loss", "eval_loss", "loss")
GRACE_S = 5  # that an answer may take after Ctrl-C
SCORES = ("eval_acc", "accuracy", "acc", "eval_accuracy")


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """Return the header and the arrays of a frame; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    header = json.loads(stream.read(LENGTH.unpack(head)[0]))
    arrays = []
    for dtype, shape in header.pop("arrays"):
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        arrays.append(np.frombuffer(stream.read(size), dtype).reshape(shape).copy())
    return header, arrays


def write_frame(stream: IO[bytes], header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    """Write a header and arrays."""
    kinds = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps({**header, "arrays": kinds}).encode()
    stream.write(LENGTH.pack(len(text)) + text)
    for array in arrays:
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


class App:
    """A `ClientApp` with a context for each worker."""

    def __init__(self, path: str, workers: int) -> None:
        from flwr.app import Context, RecordDict

        _identify()
        module, _, name = path.partition(":")
        self._app = getattr(import_module(module), name)
        self._contexts = [
            Context(
                run_id=1,
                node_id=k + 1,
                node_config={"partition-id": k, "num-partitions": workers},
                state=RecordDict(),
                run_config={},
            )
            for k in range(workers)
        ]

    def call(
        self, kind: str, worker: int, names: list[str], arrays: list[np.ndarray], config: Any
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send a message of this kind to the app; return its metrics, and its arrays with names."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

        content = RecordDict({"config": ConfigRecord(config)})
        if names:
            named = {n: Array(a) for n, a in zip(names, arrays, strict=True)}
            content["arrays"] = ArrayRecord(named)
        message = Message(content=content, dst_node_id=worker + 1, message_type=kind)
        reply = self._app(message, self._contexts[worker])
        if not reply.has_content():
            raise ValueError(f"the app answered {kind!r} with an error: {reply.error}")
        records, metrics = list(reply.content.array_records.values()), {}
        for record in reply.content.metric_records.values():
            metrics.update({k: v for k, v in record.items() if isinstance(v, int | float)})
        found = records[0] if records else {}
        loss = next((metrics[k] for k in LOSSES if k in metrics), None)
        score = next((metrics[k] for k in SCORES if k in metrics), None)
        header = {"loss": loss, "score": score, "samples": metrics.get("num-examples", 0)}
        return {**header, "names": list(found)}, [found[n].numpy() for n in found]


def _identify() -> None:
    """Say who sends messages; versions from 1.41 on ask for it."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


class _Grace:
    """Ctrl-C is for dystop, which ends this process; but it waits for the answer under way.

    After Ctrl-C an answer may take `GRACE_S` seconds; then the alarm ends the process.
    """

    def __init__(self) -> None:
        self._is_short = self._is_answering = False
        signal.signal(signal.SIGINT, self._on_ctrl_c)

    def _on_ctrl_c(self, number: int, frame: Any) -> None:
        self._is_short = True
        self._set_alarm()

    def _set_alarm(self) -> None:
        signal.alarm(GRACE_S if self._is_short and self._is_answering else 0)

    def __enter__(self) -> None:
        self._is_answering = True
        self._set_alarm()

    def __exit__(self, *error: object) -> None:
        self._is_answering = False
        self._set_alarm()


def main(path: str, folder: str, workers: str) -> None:
    """Answer frames until standard input ends."""
    grace = _Grace()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the app prints must not mix with answers
    sys.path.insert(0, folder or os.getcwd())
    try:
        app = App(path, int(workers))
        write_frame(answers, {"ready": True}, [])
    except Exception:
        write_frame(answers, {"error": traceback.format_exc()}, [])
        return
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        header, arrays = frame
        with grace:
            try:
                write_frame(answers, *app.call(arrays=arrays, **header))
            except Exception:
                write_frame(answers, {"error": traceback.format_exc()}, [])


if __name__ == "__main__":
    main(*sys.argv[1:])
