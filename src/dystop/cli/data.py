"""`dystop data`: what is told about samples that never leave their host."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.examples import examples
from dystop.cli.handle_errors import handle_errors
from dystop.units import plural

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("data"),
    help="Data of a testbed's workers that never leave their hosts.",
)


@handle_errors
def describe(
    file: Annotated[Path, typer.Argument(metavar="FILE.npz", help="x_train, y_train; or x, y.")],
    classes: Annotated[
        int, typer.Option(min=0, help="Number of classes, if not all of them occur here.")
    ] = 0,
) -> None:
    """Print what the operator must know about a worker's own samples: one line of JSON."""
    from dystop.data.private import describe as facts_of
    from dystop.data.private import to_line

    typer.echo(to_line(facts_of(file, classes)))


@handle_errors
def enrol(
    files: Annotated[
        list[Path], typer.Argument(metavar="w00.json w01.json ...", help="One for each worker.")
    ],
    out: Annotated[Path, typer.Option(help="For 'dystop coordinator --enrolment'.")] = Path(
        "enrolment.json"
    ),
) -> None:
    """Put together what the workers said of their data; prints what goes into the configuration."""
    from dystop.data.private import common, read_facts
    from dystop.experiments.config.write import dumps
    from dystop.experiments.testbed.enrolment import check_member_files
    from dystop.experiments.testbed.enrolment import enrol as write

    check_member_files(files)
    told = {path.stem: read_facts(path) for path in sorted(files, key=lambda path: path.stem)}
    agreed = common(list(told.values()))
    write(out, told, agreed.classes)
    shown = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(agreed).items()}
    count = plural(len(told), "worker")
    typer.echo(f"{out}: {count}. The configuration of all parties needs:\n", err=True)
    typer.echo(dumps({"fleet": {"workers": len(told)}, "data": {"private": shown}}), nl=False)


_COMMANDS: dict[str, Callable[..., None]] = {"describe": describe, "enrol": enrol}
for _name, _command in _COMMANDS.items():
    data.command(_name)(_command)
