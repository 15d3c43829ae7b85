"""The testbed under `mpiexec`: rank 0 is coordinator and observer, every other rank a node.

MPI has no fault tolerance: a rank that dies ends the job. All ranks read the same settings; those
that see the run folder (a shared disk) keep checkpoint and diary there.

Ctrl-C reaches all ranks, and a rank that ends with an error makes the launcher kill the others. So
rank 0 alone answers it: it stops the run and says how to go on. The others leave when it tells
them to, without an error, or after a while if it does not. Before all ranks have joined the job
there is no run folder yet, and Ctrl-C ends each of them at once.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dystop.errors import DystopError
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.interrupts import Interrupts, signals_kill
from dystop.experiments.run_folder import CONFIG, INFO
from dystop.experiments.testbed.enrolment import OBSERVER, node_names
from dystop.experiments.testbed.launch import WORKERS, Watch, new_testbed, reopen_testbed
from dystop.experiments.testbed.parties import Way, leave_model, make_worker
from dystop.experiments.testbed.parts import worker_parts
from dystop.experiments.testbed.threads import run_here
from dystop.testbed.events import Exit
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.transport.mpi import MpiTransport
from dystop.testbed.transport.mpi_endpoint import MpiEndpoint, join_job, names_by_rank
from dystop.testbed.transport.mpi_router import FrameRouter
from dystop.testbed.worker.history import HISTORY_FILE, EventLog
from dystop.testbed.worker.process import write_nothing

COUNTER = "0:1"  # rank and port of the coordinator
FOLDER_S = 300.0  # for rank 0 to load the data and make the run folder
SHARED_S = 3.0  # for it to be seen by the others, where the disk is shared
FAREWELL_S = 10.0  # for all to leave once something went wrong; rank 0 needs some of it itself
LEAVE_S = 40.0  # after an interrupt: for rank 0 to say where the folder is, or that there is none
TOLD_S = 6.0  # after an interrupt: for rank 0 to tell a worker to stop, if it ever joined
LOOK_S = 0.2  # between two looks at whether there was one
FIRST_WORD = 0  # tag of the frame that says where the folder is


def run_ranks(
    file: Path | None, keys: Sequence[str], out: Path, name: str | None, watch: Watch
) -> Path | None:
    """Play this rank's part; rank 0 answers with the run folder, the others with nothing."""

    def read(endpoint: MpiEndpoint) -> Experiment:
        experiment = read_experiment(file, _with_workers(file, keys, endpoint.size))
        names_by_rank(
            node_names(experiment), endpoint.size
        )  # all ranks refuse a job of the wrong size
        return experiment

    def lead(endpoint: MpiEndpoint) -> Path:
        experiment = read(endpoint)
        folder = _tell(endpoint, lambda: new_testbed(experiment, out, name, watch))
        _lead(experiment, folder, watch, endpoint)
        return folder

    def follow(endpoint: MpiEndpoint, interrupts: Interrupts) -> None:
        experiment = read(endpoint)
        folder = _told(endpoint, interrupts)
        if folder is not None:
            _follow(experiment, folder if _is_seen(folder) else None, endpoint, interrupts)
        elif interrupts.pending is None:
            raise DystopError("rank 0 could not begin the run")

    return _in_job(lead, follow)


def _in_job(
    lead: Callable[[MpiEndpoint], Path], follow: Callable[[MpiEndpoint, Interrupts], None]
) -> Path | None:
    """Join the job, do this rank's part and leave together with all others."""
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
        endpoint.close(FAREWELL_S)
        raise
    endpoint.close()


def _tell(endpoint: MpiEndpoint, make: Callable[[], Path]) -> Path:
    """Make the run folder and tell all ranks where it is; nothing where there is none."""
    folder: Path | None = None
    try:
        folder = make()
    finally:
        word = str(folder.absolute()).encode() if folder else b""
        for rank in range(1, endpoint.size):
            endpoint.send(rank, FIRST_WORD, word)
    return folder


def _told(endpoint: MpiEndpoint, interrupts: Interrupts) -> Path | None:
    """The run folder, which this rank sees if the disk is shared; None where there is none."""
    word = endpoint.first_frame(FOLDER_S, lambda: interrupts.pending_s > LEAVE_S).decode()
    return Path(word) if word else None


def _is_seen(folder: Path) -> bool:
    """Whether the disk is shared; a file may take a moment to get around."""
    until = time.monotonic() + SHARED_S
    while not (folder / INFO).is_file():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def resume_ranks(folder: Path, watch: Watch) -> Path | None:
    """Go on with a run whose job has ended; all ranks must see its folder."""

    def lead(endpoint: MpiEndpoint) -> Path:
        reopen_testbed(folder, watch)
        _lead(read_experiment(folder / CONFIG), folder, watch, endpoint)
        return folder

    def follow(endpoint: MpiEndpoint, interrupts: Interrupts) -> None:
        _follow(read_experiment(folder / CONFIG), folder, endpoint, interrupts)

    return _in_job(lead, follow)


@contextmanager
def _router(endpoint: MpiEndpoint, experiment: Experiment) -> Iterator[FrameRouter]:
    router = FrameRouter(endpoint, names_by_rank(node_names(experiment), endpoint.size))
    try:
        yield router
    finally:
        router.dispatcher.close()


def _with_workers(file: Path | None, keys: Sequence[str], size: int) -> list[str]:
    """As many workers as there are ranks, unless a number was asked for."""
    given = any(key.partition("=")[0].strip() == "fleet.workers" for key in keys)
    if file is not None and not given:
        given = "workers" in tomllib.loads(file.read_text()).get("fleet", {})
    if given:
        return list(keys)
    server = read_experiment(file, keys).mechanism.capabilities().server
    return [*keys, f"fleet.workers={max(1, size - 1 - int(server))}"]


def _lead(experiment: Experiment, folder: Path, watch: Watch, endpoint: MpiEndpoint) -> None:
    """Rank 0."""
    limits = experiment.testbed.limits
    here = [OBSERVER] if experiment.testbed.observer else []
    with _router(endpoint, experiment) as router:

        def transport(party: str, door: AllowList | None) -> Transport:
            if door is None:
                return MpiTransport(router, party, limits)
            return MpiTransport(router, party, limits, door)

        run_here(folder, watch, transport, here, COUNTER)


def _follow(
    experiment: Experiment, folder: Path | None, endpoint: MpiEndpoint, interrupts: Interrupts
) -> None:
    """Any other rank."""
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
    door = AllowList(OBSERVER)
    transport = MpiTransport(router, name, experiment.testbed.limits, door)
    home = folder / WORKERS / name if folder else None
    note = EventLog(home / HISTORY_FILE).write if home else write_nothing
    way = Way(transport, COUNTER, f"{router.endpoint.rank}:0", "", door, note)
    parts = worker_parts(experiment, node)
    party = make_worker(parts, experiment, home, way)
    party.start()
    try:
        while (end := party.wait(LOOK_S)) is None:
            if interrupts.pending_s > TOLD_S:
                break
    finally:
        party.close()
        transport.close()
    if home:
        leave_model(parts, experiment, home)
    return end or Exit(0, "interrupted")
