"""`dystop dashboard`: serve a page that shows runs while they run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Out
from dystop.cli.terminal import TERMINATED, handle_errors
from dystop.runs.interrupts import Terminated

if TYPE_CHECKING:
    from dystop.dashboard.server import Server

_OUT = Path("runs")


@handle_errors
def dashboard(  # noqa: PLR0913 - one for each option
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|FOLDER", help="A run, a comparison, or a folder of runs."),
    ] = None,
    out: Out = _OUT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; all but 127.0.0.1 need a token and TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 6070,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Secret that users must enter; only you may read it."),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of this host (PEM).")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of this host in the browser, if not --host."),
    ] = None,
) -> None:
    """Show runs in the browser, live: curves, the map of the workers, staleness.

    Without a folder, it shows all runs in --out. The page is read-only. Stop it with Ctrl-C.
    """
    from dystop.dashboard.access import Settings
    from dystop.dashboard.server import open_server

    folder = _folder(run, out)
    settings = Settings(host, port, token_file, cert, key, tuple(allow_host or ()))
    with open_server(folder, settings) as server:
        _serve(server, _address(server, folder), show=show)


def _serve(server: "Server", address: str, *, show: bool) -> None:
    """Serve until the user stops it with a signal; Ctrl-C is a normal end."""
    try:
        typer.echo(f"dashboard: {address} (stop with Ctrl-C)")
        if show:
            import webbrowser

            webbrowser.open(address)
        server.serve_forever()
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, Terminated):
            raise typer.Exit(TERMINATED) from None


def _folder(run: Path | None, out: Path) -> Path:
    """Return the folder to show; a named folder must exist, the folder of all runs need not.

    `os.path` returns False, and raises nothing, for a name that is too long or a closed folder.
    """
    from dystop.errors import RunFolderError, nearest

    folder = run or out
    if os.path.isdir(folder) or (run is None and not os.path.lexists(folder)):
        return folder
    if os.path.lexists(folder):
        raise RunFolderError(f"{folder}: not a folder; name a run, or a folder of runs")
    if run is not None and os.path.isdir(out / run):
        raise RunFolderError(f"{run}: no such folder; did you mean '{out / run}'?")
    beside = os.listdir(folder.parent) if os.path.isdir(folder.parent) else []
    raise RunFolderError(f"{folder}: no such folder{nearest(folder.name, beside)}")


def _address(server: "Server", folder: Path) -> str:
    """Return the address of the folder's page: that of a run, of a study, or the list."""
    from dystop.dashboard.run_folders.discovery import find_runs
    from dystop.dashboard.site import STUDY

    found, here = find_runs(folder), folder.resolve()
    for name, group in found.groups.items():
        if group.folder == here:
            return server.url(name, STUDY)
    runs = found.locations
    return server.url(next((key for key, run in runs.items() if run.folder == here), ""))
