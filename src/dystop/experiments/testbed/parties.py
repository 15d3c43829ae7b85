"""One party of a testbed in this process: a worker, the server, or the observer."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch

import dystop
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.testbed.enrolment import OBSERVER, node_names, node_of, read_enrolled
from dystop.experiments.testbed.parts import TestingParts, WorkerParts, observer_parts, worker_parts
from dystop.storage import write_atomic
from dystop.testbed.events import Exit
from dystop.testbed.observer import Observer, ObserverComponents
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.history import HISTORY_FILE, EventLog, WriteLine
from dystop.testbed.worker.process import WorkerComponents, WorkerProcess, write_nothing
from dystop.testbed.worker.state import WorkerSetup
from dystop.training.saved import to_bytes

_LOG = logging.getLogger(__name__)
CHECKPOINT, MODEL = "worker.safetensors", "model.safetensors"
PATIENCE_S = 2.0  # for a party to end after it was told to
POLL_S = 0.5  # a signal is looked at this often
SOFTWARE = f"dystop {dystop.__version__}"


@dataclass(frozen=True)
class Way:
    """How a party reaches the others."""

    transport: Transport
    coordinator: str  # its address
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # where peers find it, if that is not where it listens
    door: AllowList = field(default_factory=lambda: AllowList(OBSERVER))
    note: WriteLine = write_nothing  # writes a line of the event log


def make_worker(
    parts: WorkerParts, experiment: Experiment, folder: Path | None, way: Way
) -> WorkerProcess:
    """A worker, or the server, that goes on where its folder says; without one it forgets."""
    bed = experiment.testbed
    setup = WorkerSetup(
        name=node_names(experiment)[parts.node],
        node=parts.node,
        schema=parts.schema.hash,
        software=SOFTWARE,
        data_size=parts.data_size,
        label_counts=parts.label_counts,
        first_steps=parts.first_steps,
        deltas=experiment.mechanism.capabilities().deltas,
        timeouts=bed.timeouts,
        guards=bed.guards,
        limits=bed.limits,
    )
    return WorkerProcess(
        WorkerComponents(
            transport=way.transport,
            coordinator=way.coordinator,
            setup=setup,
            schema=parts.schema,
            initial=(parts.vector, parts.counters),
            train=parts.train,
            checkpoints=CheckpointStore(folder / CHECKPOINT) if folder else None,
            listen=way.listen,
            advertise=way.advertise,
            step_s=parts.step_s,
            allow_list=way.door,
            write_line=way.note,
        )
    )


def make_observer(parts: TestingParts, experiment: Experiment, way: Way) -> Observer:
    """The observer."""
    return Observer(
        ObserverComponents(
            transport=way.transport,
            coordinator=way.coordinator,
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


def serve_worker(
    place: Place,
    name: str,
    listen: str,
    advertise: str,
    folder: Path,
    data: Path | None = None,
) -> Exit:
    """Be a worker until the run is over; `data` are its own samples, if the run is on such."""
    experiment = read_experiment(place.file)
    node, door = node_of(experiment, name), AllowList(OBSERVER)
    transport = _transport(place.pki, name, door, experiment)
    note = EventLog(folder / HISTORY_FILE).write
    way = Way(transport, place.coordinator, listen, advertise, door, note)
    parts = worker_parts(experiment, node, data)
    end = _live(make_worker(parts, experiment, folder, way), transport)
    leave_model(parts, experiment, folder)
    return end


def leave_model(parts: WorkerParts, experiment: Experiment, folder: Path) -> None:
    """Leave the model that a worker has come to in its folder, where models are to be kept."""
    state = CheckpointStore(folder / CHECKPOINT).load().state
    if state is None or parts.train is None or experiment.output.models == "none":
        return
    vector, counters = torch.from_numpy(state.published), torch.from_numpy(state.counters)
    try:
        write_atomic(folder / MODEL, to_bytes(parts.layout, vector, counters, parts.card))
    except OSError as error:  # the run is over, and its checkpoint holds the model as well
        _LOG.error("%s: cannot be written: %s", folder / MODEL, error.strerror or error)


def serve_observer(place: Place, enrolment: Path | None = None) -> Exit:
    """Be the observer until the run is over; needs the enrolment where data are private."""
    experiment = read_experiment(place.file)
    enrolled = read_enrolled(enrolment, experiment) if enrolment else None
    transport = _transport(place.pki, OBSERVER, AllowList(), experiment)
    way = Way(transport, place.coordinator)
    parts = observer_parts(experiment, enrolled)
    return _live(make_observer(parts, experiment, way), transport)


def _transport(pki: Path, name: str, door: AllowList, experiment: Experiment) -> Transport:
    from dystop.testbed.security.identity import load_identity
    from dystop.testbed.transport.grpc import GrpcTransport

    return GrpcTransport(load_identity(pki, name), door, experiment.testbed.limits)


def _live(party: WorkerProcess | Observer, transport: Transport) -> Exit:
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
