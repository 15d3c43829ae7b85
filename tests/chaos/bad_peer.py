"""A worker that takes part like any other but serves nothing that may be used.

`python bad_peer.py worker FILE.toml --name w03 ...`: the words of `dystop worker`. Every model that
it sends goes through the real transport and is wrong in one of several ways, in turn. It keeps no
diary of what it served, so the checker reports any use of it (I4).
"""

import itertools
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from dystop.testbed.events import Publication
from dystop.testbed.protocol.messages import PullRequest
from dystop.testbed.protocol.payload import digest
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer


def _with(shelf: Any, shipment: ServedModel, vector: Any) -> ServedModel:
    """The vector instead of the real one, with the right digest."""
    parts = shelf._packer._schema.pack(vector.astype(np.float32))
    return ServedModel(replace(shipment.header, sha256=digest(parts)), parts)


def _one(vector: Any, value: float) -> Any:
    spoilt = vector.copy()
    spoilt[len(spoilt) // 2] = value
    return spoilt


def _flipped(shipment: ServedModel) -> tuple[memoryview, ...]:
    spoilt = bytearray(b"".join(bytes(part) for part in shipment.parts))
    spoilt[-3] ^= 64
    return (memoryview(bytes(spoilt)),)


KINDS = {
    "nan": lambda shelf, s, v: _with(shelf, s, _one(v, np.nan)),
    "inf": lambda shelf, s, v: _with(shelf, s, _one(v, np.inf)),
    "huge": lambda shelf, s, v: _with(shelf, s, v * 1e6),
    "digest": lambda shelf, s, v: replace(s, header=replace(s.header, sha256="0" * 64)),
    "flipped": lambda shelf, s, v: replace(s, parts=_flipped(s)),
    "schema": lambda shelf, s, v: replace(s, header=replace(s.header, schema="0" * 64)),
    "size": lambda shelf, s, v: replace(s, header=replace(s.header, size=10**12)),
    "short": lambda shelf, s, v: replace(s, parts=(s.parts[0],)),
}


def poison() -> None:
    """Make every shelf of this process serve bad models."""
    turns = itertools.cycle(KINDS)

    def push(shelf: Any, future: "Future[Any]", request: PullRequest, model: Publication) -> None:
        whole = shelf._packer.shipment(model, replace(request, version=0, offset=0))
        future.set_result(KINDS[next(turns)](shelf, whole, model.vector))

    PublishedModelServer._push = push  # type: ignore[method-assign]


if __name__ == "__main__":
    from dystop.__main__ import main
    from dystop.exit_with_parent import exit_with_parent

    exit_with_parent()
    poison()
    main()
