"""A worker that follows the protocol but serves only bad models.

    python bad_peer.py worker FILE.toml --name w03 ...

The arguments are those of `dystop worker`. Every model that it sends goes through the real
transport and has one of several defects, in turn. It writes no line about what it served into its
event log, so the checker reports any use of such a model (I4).
"""

import itertools
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from dystop.testbed.events import Publication
from dystop.testbed.protocol.payload import digest
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer


def _with_vector(server: Any, served: ServedModel, vector: Any) -> ServedModel:
    """Return another vector in place of the served one, with a correct digest."""
    parts = server._encoder._schema.pack(vector.astype(np.float32))
    return ServedModel(replace(served.header, sha256=digest(parts)), parts)


def _with_value(vector: Any, value: float) -> Any:
    """Return the vector with one coordinate replaced."""
    changed = vector.copy()
    changed[len(changed) // 2] = value
    return changed


def _with_flipped_bit(served: ServedModel) -> tuple[memoryview, ...]:
    """Return the bytes of a model with one bit flipped."""
    payload = bytearray(b"".join(bytes(part) for part in served.parts))
    payload[-3] ^= 64
    return (memoryview(bytes(payload)),)


DEFECTS = {
    "nan": lambda server, m, v: _with_vector(server, m, _with_value(v, np.nan)),
    "inf": lambda server, m, v: _with_vector(server, m, _with_value(v, np.inf)),
    "huge": lambda server, m, v: _with_vector(server, m, v * 1e6),
    "digest": lambda server, m, v: replace(m, header=replace(m.header, sha256="0" * 64)),
    "flipped": lambda server, m, v: replace(m, parts=_with_flipped_bit(m)),
    "schema": lambda server, m, v: replace(m, header=replace(m.header, schema="0" * 64)),
    "size": lambda server, m, v: replace(m, header=replace(m.header, size=10**12)),
    "short": lambda server, m, v: replace(m, parts=(m.parts[0],)),
}


def serve_bad_models() -> None:
    """Make every model server of this process serve bad models."""
    defects = itertools.cycle(DEFECTS)

    def push(server: Any, future: "Future[Any]", request: PullRequest, model: Publication) -> None:
        whole = server._encoder.served_model(model, replace(request, version=0, offset=0))
        future.set_result(DEFECTS[next(defects)](server, whole, model.vector))

    PublishedModelServer._push = push  # type: ignore[method-assign]


if __name__ == "__main__":
    from dystop.__main__ import main
    from dystop.runs.processes import exit_with_parent

    exit_with_parent()
    serve_bad_models()
    main()
