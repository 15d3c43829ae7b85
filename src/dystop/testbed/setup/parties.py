"""One party of a testbed in this process: a worker, the server, or the observer."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch

import dystop
from dystop.carried import Carrying
from dystop.config import Experiment, read_experiment
from dystop.runs.building import exchange_of
from dystop.storage import write_atomic
from dystop.testbed.events import Exit
from dystop.testbed.launch.health import HealthFile
from dystop.testbed.names import OBSERVER
from dystop.testbed.observer import Observer, ObserverComponents
from dystop.testbed.setup.enrolment import node_names, node_of, read_enrolled
from dystop.testbed.setup.parts import (
    ObserverParts,
    WorkerParts,
    observer_parts,
    worker_parts,
)
from dystop.testbed.setup.transports import launcher_of
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.history import HISTORY_FILE, EventLog, WriteLine
from dystop.testbed.worker.process import WorkerComponents, WorkerProcess, write_nothing
from dystop.testbed.worker.state import Introduction, WorkerSetup
from dystop.training.saved import to_bytes

_LOG = logging.getLogger(__name__)
CHECKPOINT, MODEL = "worker.safetensors", "model.safetensors"
STOP_S = 2.0  # for a party to end after `stop`
POLL_S = 0.5  # how often a signal is checked
SOFTWARE = f"dystop {dystop.__version__}"


@dataclass(frozen=True)
class PartyConnection:
    """How a party reaches the others."""

    transport: Transport
    coordinator: str  # its address
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # address for peers, if it is not `listen`
    allow_list: AllowList = field(default_factory=lambda: AllowList(OBSERVER))
    write_line: WriteLine = write_nothing  # into the event log


def make_worker(
    parts: WorkerParts, experiment: Experiment, folder: Path | None, connection: PartyConnection
) -> WorkerProcess:
    """Build a worker or the server; it resumes from its folder, if it has one."""
    mechanism = experiment.mechanism
    able = mechanism.capabilities()
    setup = WorkerSetup(
        name=node_names(experiment)[parts.node],
        node=parts.node,
        introduction=Introduction(
            schema=parts.schema.hash,
            software=SOFTWARE,
            data_size=parts.data_size,
            label_counts=parts.label_counts,
        ),
        first_steps=parts.first_steps,
        deltas=able.deltas,
        params=experiment.testbed,
        exchange=exchange_of(experiment, parts.layout),
        carrying=Carrying(mechanism, parts.places) if able.carries else None,
        own_losses=parts.own_losses,
    )
    return WorkerProcess(
        WorkerComponents(
            transport=connection.transport,
            coordinator=connection.coordinator,
            setup=setup,
            schema=parts.schema,
            initial=(parts.vector, parts.counters),
            train=parts.train,
            checkpoints=CheckpointStore(folder / CHECKPOINT) if folder else None,
            listen=connection.listen,
            advertise=connection.advertise,
            step_s=parts.step_s,
            allow_list=connection.allow_list,
            write_line=connection.write_line,
        )
    )


def make_observer(
    parts: ObserverParts, experiment: Experiment, connection: PartyConnection
) -> Observer:
    """Build the observer."""
    return Observer(
        ObserverComponents(
            transport=connection.transport,
            coordinator=connection.coordinator,
            schema=parts.schema,
            trainer=parts.trainer,
            counters=parts.counters,
            data_size=parts.data_size,
            samples=parts.samples,
            left_out=parts.left_out,
            per_worker=experiment.evaluate.per_worker,
            software=SOFTWARE,
            timeouts=experiment.testbed.timeouts,
            guards=experiment.testbed.guards,
        )
    )


@dataclass(frozen=True)
class PartyOptions:
    """What a party in its own process is given on the command line."""

    file: Path  # the experiment
    pki: Path
    coordinator: str  # address
    health: HealthFile = field(default_factory=HealthFile)


def serve_worker(
    options: PartyOptions,
    name: str,
    listen: str,
    advertise: str,
    folder: Path,
    data: Path | None = None,
) -> Exit:
    """Run a worker until the run ends; `data` are its own samples, if data are private."""
    experiment = read_experiment(options.file)
    node, allow_list = node_of(experiment, name), AllowList(OBSERVER)
    transport = launcher_of(experiment).connect(
        options.pki, name, allow_list, experiment.testbed.limits
    )
    write_line = EventLog(folder / HISTORY_FILE).write
    connection = PartyConnection(
        transport, options.coordinator, listen, advertise, allow_list, write_line
    )
    parts = worker_parts(experiment, node, data)
    end = _run_until_end(make_worker(parts, experiment, folder, connection), transport, options)
    save_model(parts, experiment, folder)
    return end


def save_model(parts: WorkerParts, experiment: Experiment, folder: Path) -> None:
    """Write the final model of a worker into its folder, if `output.models` asks for models."""
    state = CheckpointStore(folder / CHECKPOINT).load().state
    if state is None or parts.train is None or experiment.output.models == "none":
        return
    models = state.models
    vector, counters = map(torch.from_numpy, (models.published, models.published_counters))
    try:
        write_atomic(folder / MODEL, to_bytes(parts.layout, vector, counters, parts.card))
    except OSError as error:  # the run has ended, and the checkpoint holds the model, too
        _LOG.error("%s: cannot be written: %s", folder / MODEL, error.strerror or error)


def serve_observer(options: PartyOptions, enrolment: Path | None = None) -> Exit:
    """Run the observer until the run ends; it needs the enrolment if data are private."""
    experiment = read_experiment(options.file)
    enrolled = read_enrolled(enrolment, experiment) if enrolment else None
    transport = launcher_of(experiment).connect(
        options.pki, OBSERVER, AllowList(), experiment.testbed.limits
    )
    connection = PartyConnection(transport, options.coordinator)
    parts = observer_parts(experiment, enrolled)
    return _run_until_end(make_observer(parts, experiment, connection), transport, options)


def _run_until_end(
    party: WorkerProcess | Observer, transport: Transport, options: PartyOptions
) -> Exit:
    """Run until the end. Ctrl-C leaves the run first; SIGTERM exits as a crash would."""
    party.start()
    try:
        while (end := party.wait(POLL_S)) is None:
            options.health.write(party.health())
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is KeyboardInterrupt:
            party.stop("interrupted")
            party.wait(STOP_S)
        raise
    transport.close()
    if end.code == 0:
        options.health.over(party.health().party)
    return end
