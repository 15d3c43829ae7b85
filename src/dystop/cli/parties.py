"""`dystop coordinator`, `dystop worker` and `dystop observer`: one party on one host."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.handle_errors import code_of, handle_errors
from dystop.cli.pki import check_installed

if TYPE_CHECKING:
    from dystop.testbed.events import Exit

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment, equal on all.")]
Pki = Annotated[Path, typer.Option(help="Folder with the keys and certificates of this party.")]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")]
Enrolment = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Who takes part, where workers bring their own data."),
]
Coordinator = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the coordinator is.")]


def _begin() -> None:
    check_installed()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def _play(part: Callable[[], tuple[int, str]]) -> None:
    """Play a part to its end, and end here and now: threads of libraries must not delay it."""
    try:
        code, text = part()
    except KeyboardInterrupt as interrupt:
        code, text = code_of(interrupt), "stopped"
    typer.echo(text, err=code != 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@handle_errors
def coordinator(
    file: File,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder, new or not.")] = Path(
        "runs/testbed"
    ),
    enrol: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where newcomers redeem tokens; off by itself.")
    ] = "",
    enrolment: Enrolment = None,
) -> None:
    """Coordinate a run: decide, keep the books, never touch a model."""
    _begin()
    from dystop.experiments.testbed.coordinator_run import serve_coordinator

    def part() -> tuple[int, str]:
        reason = serve_coordinator(file, pki, listen, out, enrol, enrolment)
        return 0, f"the run is over: {reason}"

    _play(part)


@handle_errors
def worker(  # noqa: PLR0913 - one for each option
    file: File,
    name: Annotated[str, typer.Option(help="Which worker this is: w00, w01, ..., or server.")],
    coordinator: Coordinator,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where peers find it, if not where it listens.")
    ] = "",
    folder: Annotated[Path | None, typer.Option(help="Its checkpoint; default: its name.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Its own samples, on this host only.")
    ] = None,
) -> None:
    """Be a worker: train on the own data, serve the own model, obey the coordinator."""
    _begin()
    from dystop.experiments.testbed.parties import Place, serve_worker

    place = Place(file, pki, coordinator)
    home = folder or Path(name)
    _play(lambda: _told(serve_worker(place, name, listen, advertise, home, data)))


@handle_errors
def observer(
    file: File, coordinator: Coordinator, pki: Pki = Path("pki"), enrolment: Enrolment = None
) -> None:
    """Test all models now and then, when the coordinator asks for it."""
    _begin()
    from dystop.experiments.testbed.parties import Place, serve_observer

    _play(lambda: _told(serve_observer(Place(file, pki, coordinator), enrolment)))


def _told(end: "Exit") -> tuple[int, str]:
    return end.code, end.text or "the run is over"
