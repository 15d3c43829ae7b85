"""The testbed under `mpiexec`: rank 0 is coordinator and observer, every other rank a node.

MPI has no fault tolerance: a rank that dies ends the job. All ranks read the same settings; those
that see the run folder (a shared disk) keep checkpoint and diary there.
"""

import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dystop.errors import DystopError
from dystop.experiments.spec import Experiment, read_experiment
from dystop.experiments.store import CONFIG, INFO, open_run
from dystop.experiments.testbed import (
    ENROLMENT,
    OBSERVER,
    node_names,
    read_enrolment,
    run_id_of,
)
from dystop.experiments.testbed_nodes import Way, make_worker
from dystop.experiments.testbed_run import WORKERS, Watch, new_testbed, reopen_testbed
from dystop.experiments.testbed_threads import run_here
from dystop.runtime.door import Door
from dystop.runtime.history import HISTORY_FILE, History
from dystop.runtime.node import no_note
from dystop.runtime.transport.base import Transport
from dystop.runtime.transport.mpi import MpiLine, MpiTransport, Switch, join_job, seats

COUNTER = "0:1"  # rank and port of the coordinator
FOLDER_S = 30.0  # for the run folder to appear, where the disk is shared


def run_ranks(
    file: Path | None, keys: Sequence[str], out: Path, name: str | None, watch: Watch
) -> Path | None:
    """Play this rank's part; rank 0 answers with the run folder, the others with nothing."""
    line = join_job()
    experiment = read_experiment(file, _with_workers(file, keys, line.size))
    run = run_id_of(experiment)
    with _switch(line, experiment) as switch:
        if line.rank == 0:
            folder = new_testbed(experiment, out, name, watch, run)
            _lead(experiment, folder, watch, switch)
            return folder
        _follow(experiment, run, _shared_folder(out, experiment, run), switch)
        return None


def resume_ranks(folder: Path, watch: Watch) -> Path | None:
    """Go on with a run whose job has ended; all ranks must see its folder."""
    line = join_job()
    experiment = read_experiment(folder / CONFIG)
    run = read_enrolment(folder, experiment).run
    with _switch(line, experiment) as switch:
        if line.rank == 0:
            reopen_testbed(folder, watch)
            _lead(experiment, folder, watch, switch)
            return folder
        _follow(experiment, run, folder, switch)
        return None


@contextmanager
def _switch(line: MpiLine, experiment: Experiment) -> Iterator[Switch]:
    switch = Switch(line, seats(node_names(experiment), line.size))
    try:
        yield switch
    finally:
        switch.dispatcher.close()
        line.close()


def _with_workers(file: Path | None, keys: Sequence[str], size: int) -> list[str]:
    """As many workers as there are ranks, unless a number was asked for."""
    given = any(key.partition("=")[0].strip() == "fleet.workers" for key in keys)
    if file is not None and not given:
        given = "workers" in tomllib.loads(file.read_text()).get("fleet", {})
    if given:
        return list(keys)
    server = read_experiment(file, keys).mechanism.server
    return [*keys, f"fleet.workers={max(1, size - 1 - int(server))}"]


def _lead(experiment: Experiment, folder: Path, watch: Watch, switch: Switch) -> None:
    """Rank 0."""
    limits = experiment.testbed.limits

    def transport(party: str, door: Door | None) -> Transport:
        if door is None:
            return MpiTransport(switch, party, limits)
        return MpiTransport(switch, party, limits, door)

    here = [OBSERVER] if experiment.testbed.observer else []
    run_here(folder, watch, transport, here, COUNTER)


def _follow(experiment: Experiment, run: str, folder: Path | None, switch: Switch) -> None:
    """Any other rank."""
    node = switch.line.rank - 1
    name = node_names(experiment)[node]
    door = Door(OBSERVER)
    transport = MpiTransport(switch, name, experiment.testbed.limits, door)
    home = folder / WORKERS / name if folder else None
    note = History(home / HISTORY_FILE).note if home else no_note
    way = Way(transport, COUNTER, f"{switch.line.rank}:0", "", door, note)
    party = make_worker(experiment, node, run, home, way)
    end = party.run()
    transport.close()
    if end.code:
        error = DystopError(f"{name}: {end.text}")
        error.exit_code = end.code
        raise error


def _shared_folder(out: Path, experiment: Experiment, run: str) -> Path | None:
    """The folder that rank 0 makes, where this rank can see it."""
    until = time.monotonic() + FOLDER_S
    while time.monotonic() < until:
        made = [path.parent for path in out.glob(f"*/{ENROLMENT}") if (path.parent / INFO).exists()]
        for folder in sorted(made, key=lambda path: path.stat().st_mtime, reverse=True):
            if _is_ours(folder, experiment, run):
                return folder
        time.sleep(0.2)
    return None


def _is_ours(folder: Path, experiment: Experiment, run: str) -> bool:
    try:
        running = open_run(folder).info.get("status") == "running"
        return running and read_enrolment(folder, experiment).run == run
    except DystopError:
        return False
