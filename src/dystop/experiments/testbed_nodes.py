"""One party of a testbed in this process: a worker, the server, or the observer."""

from dataclasses import dataclass, field
from pathlib import Path

import dystop
from dystop.experiments.spec import Experiment, read_experiment
from dystop.experiments.testbed import (
    ENROLMENT,
    OBSERVER,
    node_names,
    node_of,
    read_enrolment,
    run_id_of,
)
from dystop.experiments.testbed_parts import observer_parts, worker_parts
from dystop.runtime.door import Door
from dystop.runtime.events import Exit
from dystop.runtime.history import HISTORY_FILE, History, Note
from dystop.runtime.node import NodeParts, WorkerNode, no_note
from dystop.runtime.observer import Observer, ObserverParts
from dystop.runtime.transport.base import Transport
from dystop.runtime.vault import Vault
from dystop.runtime.worker_state import WorkerSetup

CHECKPOINT = "worker.safetensors"
PATIENCE_S = 2.0  # for a party to end after it was told to
POLL_S = 0.5  # a signal is looked at this often
SOFTWARE = f"dystop {dystop.__version__}"


def run_of(file: Path, experiment: Experiment) -> str:
    """Identity of the run: of the enrolment beside the file, or worked out from the settings."""
    if (file.parent / ENROLMENT).is_file():
        return read_enrolment(file.parent, experiment).run
    return run_id_of(experiment)


@dataclass(frozen=True)
class Way:
    """How a party reaches the others."""

    transport: Transport
    coordinator: str  # its address
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # where peers find it, if that is not where it listens
    door: Door = field(default_factory=lambda: Door(OBSERVER))
    note: Note = no_note  # the diary


def make_worker(
    experiment: Experiment, node: int, run: str, folder: Path | None, way: Way
) -> WorkerNode:
    """A worker, or the server, that goes on where its folder says; without one it forgets."""
    parts = worker_parts(experiment, node)
    bed = experiment.testbed
    setup = WorkerSetup(
        name=node_names(experiment)[node],
        node=node,
        run=run,
        schema=parts.schema.hash,
        software=SOFTWARE,
        data_size=parts.data_size,
        label_counts=parts.label_counts,
        first_steps=parts.first_steps,
        deltas=experiment.mechanism.deltas,
        timeouts=bed.timeouts,
        guards=bed.guards,
        limits=bed.limits,
    )
    return WorkerNode(
        NodeParts(
            transport=way.transport,
            coordinator=way.coordinator,
            setup=setup,
            schema=parts.schema,
            initial=(parts.vector, parts.counters),
            train=parts.train,
            vault=Vault(folder / CHECKPOINT, run) if folder else None,
            listen=way.listen,
            advertise=way.advertise,
            step_s=parts.step_s,
            door=way.door,
            note=way.note,
        )
    )


def make_observer(experiment: Experiment, run: str, way: Way) -> Observer:
    """The observer."""
    parts = observer_parts(experiment)
    return Observer(
        ObserverParts(
            transport=way.transport,
            coordinator=way.coordinator,
            run=run,
            schema=parts.schema,
            trainer=parts.trainer,
            counters=parts.counters,
            data_size=parts.data_size,
            samples=parts.samples,
            software=SOFTWARE,
            timeouts=experiment.testbed.timeouts,
        )
    )


@dataclass(frozen=True)
class Place:
    """Where a party of its own process finds what it needs."""

    file: Path  # the experiment
    pki: Path
    coordinator: str  # address


def serve_worker(place: Place, name: str, listen: str, advertise: str, folder: Path) -> Exit:
    """Be a worker until the run is over."""
    experiment = read_experiment(place.file)
    node, run = node_of(experiment, name), run_of(place.file, experiment)
    door = Door(OBSERVER)
    transport = _transport(place.pki, name, door, experiment)
    note = History(folder / HISTORY_FILE).note
    way = Way(transport, place.coordinator, listen, advertise, door, note)
    return _live(make_worker(experiment, node, run, folder, way), transport)


def serve_observer(place: Place) -> Exit:
    """Be the observer until the run is over."""
    experiment = read_experiment(place.file)
    run = run_of(place.file, experiment)
    transport = _transport(place.pki, OBSERVER, Door(), experiment)
    way = Way(transport, place.coordinator)
    return _live(make_observer(experiment, run, way), transport)


def _transport(pki: Path, name: str, door: Door, experiment: Experiment) -> Transport:
    from dystop.runtime.identity import load_identity
    from dystop.runtime.transport.grpc import GrpcTransport

    return GrpcTransport(load_identity(pki, name), door, experiment.testbed.limits)


def _live(party: WorkerNode | Observer, transport: Transport) -> Exit:
    """Run until the end. Ctrl-C says goodbye first; SIGTERM leaves as a crash would, but tidily."""
    party.start()
    try:
        while (end := party.wait(POLL_S)) is None:
            pass
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is KeyboardInterrupt:
            party.stop("interrupted")
            party.wait(PATIENCE_S)
        raise
    transport.close()
    return end
