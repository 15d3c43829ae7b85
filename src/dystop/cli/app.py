"""The `dystop` command and its subcommands."""

from collections.abc import Callable
from typing import Annotated

import typer

import dystop
from dystop.cli.data import data
from dystop.cli.doctor import doctor
from dystop.cli.examples import examples
from dystop.cli.help_examples import help_examples
from dystop.cli.listing import catalogue
from dystop.cli.new import new
from dystop.cli.results.dashboard import dashboard
from dystop.cli.results.gap import gap
from dystop.cli.results.plot import plot
from dystop.cli.results.report import animate, export, report
from dystop.cli.run import resume, run, verify
from dystop.cli.studies.advise import advise
from dystop.cli.studies.compare import compare
from dystop.cli.studies.sweep import sweep
from dystop.cli.testbed.launch import launch
from dystop.cli.testbed.operations import check, pardon, restore
from dystop.cli.testbed.parties import coordinator, health, observer, worker
from dystop.cli.testbed.pki import pki
from dystop.cli.usage import Commands

_EPILOG = (
    "Exit codes: 0 done, 1 a bug in dystop, 2 wrong input or a machine that is not ready, "
    "3 a write failed, 4 an error in a mechanism, model or task of your own, "
    "5 not reproduced or a guarantee broken, 6 a worker was rejected or left behind, "
    "7 the models diverged, 130 interrupted."
)

app = typer.Typer(
    cls=Commands,
    name="dystop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    epilog=help_examples("") + _EPILOG,
    help="Asynchronous decentralized federated learning: DySTop and its rivals on one clock, one "
    "channel, one data split.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dystop {dystop.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options of the command itself."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "compare": compare,
    "sweep": sweep,
    "advise": advise,
    "resume": resume,
    "verify": verify,
    "report": report,
    "plot": plot,
    "animate": animate,
    "export": export,
    "dashboard": dashboard,
    "list": catalogue,
    "new": new,
    "examples": examples,
    "doctor": doctor,
    "gap": gap,
    "testbed": launch,
    "check": check,
    "pardon": pardon,
    "restore": restore,
    "coordinator": coordinator,
    "worker": worker,
    "observer": observer,
    "health": health,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, epilog=help_examples(_name))(_command)
app.add_typer(pki, name="pki")
app.add_typer(data, name="data")


def main() -> None:
    """Entry point of the `dystop` command."""
    app()
