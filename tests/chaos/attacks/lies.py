"""Members that lie about time, loss and versions; everything else that they do is right."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from dystop.testbed.protocol.messages import Report
from dystop.testbed.protocol.payload import digest
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer

from .hostile import HostileWorker, attack, change_messages, change_served

LONGEST_S = 1e9  # that a message allows
ORDERS = 12  # answered with false seconds before the silence
LARGEST = 2**63 - 1
FAIR = "fair"


@attack
def over_report(hostile: HostileWorker) -> None:
    """Report a billion seconds for every pull of twelve orders, then never report again.

    With an argument, report as many seconds more than a pull took, and never fall silent.
    """
    lied: set[int] = set()

    def changed(message: Any) -> Any:
        if not isinstance(message, Report) or message.kind != "mixed":
            return message
        if not hostile.argument:
            lied.add(message.round)
            if len(lied) > ORDERS:
                return None

        def longer(entry: Any) -> Any:
            more_s = float(hostile.argument or LONGEST_S)
            return replace(entry, seconds=min(entry.seconds + more_s, LONGEST_S))

        return replace(
            message,
            used=tuple(map(longer, message.used)),
            rejected=tuple(map(longer, message.rejected)),
        )

    change_messages(hostile, changed)


@attack
def low_loss(hostile: HostileWorker) -> None:
    """Report a loss that no task of dystop can have."""

    def changed(message: Any) -> Any:
        if isinstance(message, Report) and message.kind == "trained":
            return replace(message, loss=-1e40)
        return message

    change_messages(hostile, changed)


@attack
def renumber(hostile: HostileWorker) -> None:
    """Serve models of NaN, each under a version of its own; with `fair` to workers only."""
    count = itertools.count(10**6)

    def changed(server: PublishedModelServer, served: ServedModel) -> ServedModel:
        schema = server._encoder._schema
        parts = schema.pack(np.full(schema.width, np.nan, np.float32))
        header = replace(served.header, version=next(count), sha256=digest(parts), offset=0)
        return replace(served, header=header, parts=parts)

    change_served(hostile, changed, spared="observer" if hostile.argument == FAIR else "")


@attack
def huge_version(hostile: HostileWorker) -> None:
    """Serve good models under the largest version that a message allows."""

    def changed(server: PublishedModelServer, served: ServedModel) -> ServedModel:
        return replace(served, header=replace(served.header, version=LARGEST, offset=0))

    change_served(hostile, changed, keeps_version=True)
