"""A cluster whose links carry the messages of a codec, by the classes of the real processes."""

from typing import Any

from dystop.testbed.events import Publication, PullFailed, PullFinished
from dystop.testbed.protocol.coded import CodedReceiver
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.protocol.pulls import PullBroken
from dystop.testbed.worker.model_server import ModelEncoder
from dystop.testbed.worker.public_copies import HeldCopies, PublicCopy
from virtual.cluster import Cluster, RunningPull
from virtual.processes import Process
from virtual.toy import FIRST


class CodedCluster(Cluster):
    """Copies die with their process; a pull that is cut off has changed the sender's copy."""

    def __init__(self, *parts: Any, schema: Schema) -> None:
        super().__init__(*parts)
        self.schema = schema
        self.copies: dict[str, PublicCopy] = {}
        self.encoders: dict[str, ModelEncoder] = {}
        self.held: dict[str, HeldCopies] = {}
        self.forms: list[int | None] = []  # messages of every answer; None: a whole copy

    def boot(self, process: Process) -> None:
        if process is not self.coordinator:
            initial = FIRST if process.disk is None or not process.disk.run else None
            copy = PublicCopy(self.schema.codec, process.node, initial)
            self.copies[process.name] = copy
            self.encoders[process.name] = ModelEncoder(self.schema, copy)
            self.held[process.name] = HeldCopies(FIRST, most=2)
        super().boot(process)

    def ship(self, server: Process, pull: RunningPull, publication: Publication) -> None:
        request, delta = pull.action.request, pull.action.request.delta
        held = self.held[pull.receiver.name]
        receiver = CodedReceiver(self.schema, server.node, held, delta=delta)
        request = receiver.request(request)
        served = self.encoders[server.name].served_model(publication, request)
        server.logger.served(served.header, request)
        self.served.append((request, served.header))
        self.forms.append(served.header.messages)
        self.end_pull(server, pull, lambda took: received(receiver, served, pull.key, took))


def received(receiver, served, key: int, seconds: float) -> PullFinished | PullFailed:
    """Pass all bytes of an answer to its receiver."""
    try:
        receiver.begin(served.header)
        for part in served.parts:
            receiver.write(part)
        vector = receiver.finish()
    except PullBroken as error:
        return PullFailed(key, error.code, receiver.total, seconds, receiver.announced)
    return PullFinished(key, served.header, vector, receiver.total, seconds)
