"""The testbed under `mpiexec`: rank 0 is coordinator and observer, every other rank is one node.

MPI has no fault tolerance: a rank that dies ends the job. All ranks read the same settings. Ranks
that see the run folder (on a shared disk) write checkpoint and history there.

Ctrl-C reaches all ranks, and a rank that ends with an error makes `mpiexec` kill the others. So
only rank 0 reacts: it stops the run and prints how to resume. The other ranks leave when rank 0
tells them to, without an error, or after a timeout. Before all ranks have joined the job there is
no run folder, and Ctrl-C ends each of them at once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dystop.config import Experiment, read_again, read_experiment
from dystop.config.tables import parse_file
from dystop.errors import DystopError
from dystop.folders.run_folder import INFO
from dystop.runs.interrupts import Interrupts, signals_kill
from dystop.testbed.events import Exit
from dystop.testbed.names import OBSERVER
from dystop.testbed.setup.enrolment import node_names
from dystop.testbed.setup.launch import WORKERS, ProgressReporter, new_testbed, reopen_testbed
from dystop.testbed.setup.parties import PartyConnection, make_worker, save_model
from dystop.testbed.setup.parts import worker_parts
from dystop.testbed.setup.threads import run_parties
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.transport.mpi import MpiTransport
from dystop.testbed.transport.mpi_endpoint import MpiEndpoint, join_job, names_by_rank
from dystop.testbed.transport.mpi_router import FrameRouter
from dystop.testbed.worker.history import HISTORY_FILE, EventLog
from dystop.testbed.worker.process import write_nothing

COORDINATOR_ADDRESS = "0:1"  # rank and port of the coordinator
FOLDER_S = 300.0  # for rank 0 to load the data and create the run folder
SHARED_S = 3.0  # for the folder to appear on the other ranks, if the disk is shared
LEAVE_TOGETHER_S = 10.0  # for all ranks to leave after an error; rank 0 needs some of it itself
LEAVE_S = 40.0  # after an interrupt: for rank 0 to send the path of the folder, if there is one
STOP_ORDER_S = 6.0  # after an interrupt: for rank 0 to send `Stop` to a member
POLL_S = 0.2  # between two checks for an interrupt
FOLDER_TAG = 0  # tag of the frame with the path of the run folder


def run_ranks(
    file: Path | None, keys: Sequence[str], out: Path, name: str | None, watch: ProgressReporter
) -> Path | None:
    """Run this rank's part of a new run; rank 0 returns the run folder, the others None.

    The caller has checked with `read_experiment` whose file it is.
    """

    def read(endpoint: MpiEndpoint) -> Experiment:
        keys_ = _with_workers(file, keys, endpoint.size)
        experiment = read_experiment(file, keys_)
        names_by_rank(node_names(experiment), endpoint.size)  # raises if the job has a wrong size
        return experiment

    def lead(endpoint: MpiEndpoint) -> Path:
        experiment = read(endpoint)
        folder = _send_folder(endpoint, lambda: new_testbed(experiment, out, name, watch))
        _lead(experiment, folder, watch, endpoint)
        return folder

    def follow(endpoint: MpiEndpoint, interrupts: Interrupts) -> None:
        experiment = read(endpoint)
        folder = _receive_folder(endpoint, interrupts)
        if folder is not None:
            _follow(experiment, folder if _is_shared(folder) else None, endpoint, interrupts)
        elif interrupts.pending is None:
            raise DystopError("rank 0 could not start the run")

    return _in_job(lead, follow)


def _in_job(
    lead: Callable[[MpiEndpoint], Path], follow: Callable[[MpiEndpoint, Interrupts], None]
) -> Path | None:
    """Join the job, run this rank's part and leave together with all other ranks."""
    with signals_kill():  # MPI waits for all ranks inside C, also for those that have left
        endpoint = join_job()
    if endpoint.rank == 0:
        with _leaving(endpoint):
            return lead(endpoint)
    with Interrupts(raise_at_exit=False) as interrupts, _leaving(endpoint):
        follow(endpoint, interrupts)
    return None


@contextmanager
def _leaving(endpoint: MpiEndpoint) -> Iterator[None]:
    """Leave the job at the end; after an error the other ranks have less time to leave with us."""
    try:
        yield
    except BaseException:
        endpoint.close(LEAVE_TOGETHER_S)
        raise
    endpoint.close()


def _send_folder(endpoint: MpiEndpoint, make: Callable[[], Path]) -> Path:
    """Create the run folder and send its path to all ranks; an empty one if that fails."""
    folder: Path | None = None
    try:
        folder = make()
    finally:
        path = str(folder.absolute()).encode() if folder else b""
        for rank in range(1, endpoint.size):
            endpoint.send(rank, FOLDER_TAG, path)
    return folder


def _receive_folder(endpoint: MpiEndpoint, interrupts: Interrupts) -> Path | None:
    """Return the run folder that rank 0 has sent; None if it could not create one."""
    path = endpoint.first_frame(FOLDER_S, lambda: interrupts.pending_s > LEAVE_S).decode()
    return Path(path) if path else None


def _is_shared(folder: Path) -> bool:
    """Return whether this rank can see the folder; a shared disk may need a moment."""
    until = time.monotonic() + SHARED_S
    while not (folder / INFO).is_file():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def resume_ranks(folder: Path, watch: ProgressReporter) -> Path | None:
    """Resume a run whose job has ended; all ranks must see its folder."""

    def lead(endpoint: MpiEndpoint) -> Path:
        reopen_testbed(folder, watch)
        _lead(read_again(folder), folder, watch, endpoint)
        return folder

    def follow(endpoint: MpiEndpoint, interrupts: Interrupts) -> None:
        _follow(read_again(folder), folder, endpoint, interrupts)

    return _in_job(lead, follow)


@contextmanager
def _router(endpoint: MpiEndpoint, experiment: Experiment) -> Iterator[FrameRouter]:
    router = FrameRouter(endpoint, names_by_rank(node_names(experiment), endpoint.size))
    try:
        yield router
    finally:
        router.dispatcher.close()


def _with_workers(file: Path | None, keys: Sequence[str], size: int) -> list[str]:
    """Return the keys with as many workers as ranks, unless a number is given."""
    given = any(key.partition("=")[0].strip() == "fleet.workers" for key in keys)
    if file is not None and not given:
        given = "workers" in parse_file(file)[1].get("fleet", {})
    if given:
        return list(keys)
    server = read_experiment(file, keys).mechanism.capabilities().server
    return [*keys, f"fleet.workers={max(1, size - 1 - int(server))}"]


def _lead(
    experiment: Experiment, folder: Path, watch: ProgressReporter, endpoint: MpiEndpoint
) -> None:
    """Run the part of rank 0: coordinator and observer."""
    limits = experiment.testbed.limits
    here = [OBSERVER] if experiment.testbed.observer else []
    with _router(endpoint, experiment) as router:

        def transport(party: str, allow_list: AllowList | None) -> Transport:
            if allow_list is None:
                return MpiTransport(router, party, limits)
            return MpiTransport(router, party, limits, allow_list)

        run_parties(folder, watch, transport, here, COORDINATOR_ADDRESS)


def _follow(
    experiment: Experiment, folder: Path | None, endpoint: MpiEndpoint, interrupts: Interrupts
) -> None:
    """Run the part of any other rank: one node."""
    with _router(endpoint, experiment) as router:
        end = _work(experiment, folder, router, interrupts)
    if end.code and interrupts.pending is None:
        error = DystopError(f"{node_names(experiment)[endpoint.rank - 1]}: {end.text}")
        error.exit_code = end.code
        raise error


def _work(
    experiment: Experiment, folder: Path | None, router: FrameRouter, interrupts: Interrupts
) -> Exit:
    node = router.endpoint.rank - 1
    name = node_names(experiment)[node]
    allow_list = AllowList(OBSERVER)
    transport = MpiTransport(router, name, experiment.testbed.limits, allow_list)
    home = folder / WORKERS / name if folder else None
    write_line = EventLog(home / HISTORY_FILE).write if home else write_nothing
    connection = PartyConnection(
        transport, COORDINATOR_ADDRESS, f"{router.endpoint.rank}:0", "", allow_list, write_line
    )
    parts = worker_parts(experiment, node)
    party = make_worker(parts, experiment, home, connection)
    party.start()
    try:
        while (end := party.wait(POLL_S)) is None:
            if interrupts.pending_s > STOP_ORDER_S:
                break
    finally:
        party.close()
        transport.close()
    if home:
        save_model(parts, experiment, home)
    return end or Exit(0, "interrupted")
