"""`dystop coordinator`, `worker` and `observer` run one party; `dystop health` checks one."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Trust
from dystop.cli.progress import CoordinatorWatcher
from dystop.cli.terminal import exit_code_of, handle_errors
from dystop.testbed.security import check_installed

if TYPE_CHECKING:
    from dystop.testbed.events import Exit

File = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The experiment; the same file on every host.")
]
Pki = Annotated[Path, typer.Option(help="Folder with the keys and certificates of this party.")]
Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any free port.")
]
Enrolment = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="The enrolled workers, if they bring their own data."),
]
Coordinator = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the coordinator.")]
HealthOption = Annotated[
    Path | None,
    typer.Option("--health", metavar="FILE", help="Keep this file for dystop health."),
]


def _start_logging() -> None:
    check_installed()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def _serve_and_exit(serve: Callable[[], tuple[int, str]]) -> None:
    """Run a party to its end, then exit at once, so that no library's threads delay it."""
    try:
        code, text = serve()
    except KeyboardInterrupt as interrupt:
        code, text = exit_code_of(interrupt), "stopped"
    typer.echo(text, err=code != 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@handle_errors
def coordinator(  # noqa: PLR0913 - one for each option
    file: File,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="The run folder; created if it is missing.")
    ] = Path("runs/testbed"),
    enrol: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where new parties redeem tokens, served by a process of its own (dystop pki "
            "serve); off by default.",
        ),
    ] = "",
    enrolment: Enrolment = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Coordinate a run: decide each round and keep the ledger; never touch a model."""
    _start_logging()
    from dystop.testbed.launch.health import HealthFile
    from dystop.testbed.setup.coordinator_run import CoordinatorOptions, serve_coordinator

    options = CoordinatorOptions(file, pki, listen, out, enrol, enrolment, HealthFile(health))
    watcher = CoordinatorWatcher()

    def serve() -> tuple[int, str]:
        with watcher.showing():
            return 0, f"the run is over: {serve_coordinator(options, watcher)}"

    _serve_and_exit(serve)


@handle_errors
def worker(  # noqa: PLR0913 - one for each option
    file: File,
    name: Annotated[str, typer.Option(help="Name of this worker: w00, w01, ..., or server.")],
    coordinator: Coordinator,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for peers, if not --listen.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Folder of its checkpoint; default: its name.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Its own samples, on this host only.")
    ] = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Run a worker: train on its own data, serve its model, follow the coordinator's orders."""
    _start_logging()
    from dystop.testbed.launch.health import HealthFile
    from dystop.testbed.setup.parties import PartyOptions, serve_worker

    place = PartyOptions(file, pki, coordinator, HealthFile(health))
    home = folder or Path(name)
    _serve_and_exit(lambda: _result(serve_worker(place, name, listen, advertise, home, data)))


@handle_errors
def observer(
    file: File,
    coordinator: Coordinator,
    pki: Pki = Path("pki"),
    enrolment: Enrolment = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Run the observer: evaluate all models whenever the coordinator asks for it."""
    _start_logging()
    from dystop.testbed.launch.health import HealthFile
    from dystop.testbed.setup.parties import PartyOptions, serve_observer

    place = PartyOptions(file, pki, coordinator, HealthFile(health))
    _serve_and_exit(lambda: _result(serve_observer(place, enrolment)))


def _result(end: "Exit") -> tuple[int, str]:
    return end.code, end.text or "the run is over"


@handle_errors
def health(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file of a party's --health."),
    ],
    alive: Annotated[
        bool,
        typer.Option("--alive", help="Accept a party without a session, if it is not stuck."),
    ] = False,
) -> None:
    """Say whether a coordinator, worker or observer on this host is healthy.

    Healthy is a party whose loop turns, whose port answers, and which has a session with the
    coordinator. Otherwise the exit code is 2, and one line says what is missing.
    """
    from dystop.testbed.launch.health import check_health

    typer.echo(check_health(file, alive_only=alive))
