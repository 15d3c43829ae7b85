"""`dystop data`: import data, export partitions, describe private data."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.help_examples import help_examples
from dystop.cli.options import split_words
from dystop.cli.terminal import echo, handle_errors
from dystop.units import plural

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=help_examples("data"),
    help="Import data, export which worker has which sample, and describe private data.",
)


@handle_errors
def partition(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|RUN|KEY=VALUE", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write samples and workers: .csv, .json or .parquet."),
    ] = None,
    parts: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write each worker's samples: w00.npz, w01.npz, ..."),
    ] = None,
) -> None:
    """Show which samples the workers of an experiment or a run have, and export it.

    A run with data.partition=FILE gives the workers the same samples again, whatever its seed.
    """
    from dystop.testbed.setup.partitions import partition_of, write_parts

    split = partition_of(*split_words(words or []))
    for line in split.rows:
        echo(line)
    if out is not None:
        split.write(out)
        echo(f"{out}: {plural(split.samples, 'sample')}")
    if parts is not None:
        write_parts(split, parts)
        echo(f"{parts}: {plural(split.workers, 'file')}")


@handle_errors
def import_(  # noqa: PLR0913 (an option each)
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Folder of images, FILE.csv or FILE.parquet."),
    ],
    made: Annotated[
        Path | None, typer.Argument(metavar="OUT.npz", help="The data set for data.name.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT.npz", help="The same as OUT.npz.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="SOURCE", help="The same for the test set; otherwise SOURCE/test, or a share."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of a table that is learned.")
    ] = "",
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to keep for data.partition=column; repeat it."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column that is no feature; repeat it."),
    ] = None,
    task: Annotated[
        str, typer.Option(help="classification, regression; auto: regression if decimals.")
    ] = "auto",
    size: Annotated[
        str, typer.Option(metavar="HEIGHTxWIDTH", help="Scale images to so many pixels.")
    ] = "",
    share: Annotated[float, typer.Option(help="Share of samples for the test set.")] = 0.2,
    scale: Annotated[
        bool, typer.Option(help="Give numbers mean 0 and deviation 1 over the training samples.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the division.")] = 0,
) -> None:
    """Make a data set of a folder of images or a table, for data.name=OUT.npz.

    A folder of images has a sub-folder for each class, perhaps below train and test. Numbers of a
    table become features, texts become categories.
    """
    from dystop.data.importing import check_out, import_data, save_data

    if made is not None and out is not None:
        raise typer.BadParameter(f"OUT.npz is given twice, as {made} and as --out {out}")
    target_file = made or out
    if target_file is None:
        raise typer.BadParameter("OUT.npz is missing: the file to write, as in --out data.npz")
    check_out(target_file)
    data_set = import_data(
        source,
        test=test,
        name=target_file.stem,
        target=target,
        groups=tuple(group or ()),
        drop=tuple(drop or ()),
        task=task,
        size=_size(size),
        share=share,
        scale=scale,
        seed=seed,
    )
    save_data(data_set, target_file)
    shape = " x ".join(map(str, data_set.shape))
    echo(
        f"{target_file}: {len(data_set.y_train):,} training and {len(data_set.y_test):,} test "
        f"samples of {shape}, {data_set.classes} classes"
    )


def _size(text: str) -> tuple[int, int] | None:
    """Return height and width; None if none is given.

    >>> _size("28x32"), _size("")
    ((28, 32), None)
    """
    from dystop.errors import ConfigError

    parts = text.split("x")
    if not text:
        return None
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--size {text}: expected HEIGHTxWIDTH, as in 28x28")
    return int(parts[0]), int(parts[1])


@handle_errors
def describe(
    file: Annotated[Path, typer.Argument(metavar="FILE.npz", help="x_train, y_train; or x, y.")],
    classes: Annotated[
        int, typer.Option(min=0, help="Number of classes, if some do not occur in this file.")
    ] = 0,
) -> None:
    """Print the facts about private data that the operator needs, as one line of JSON."""
    from dystop.data.private import describe as facts_of
    from dystop.data.private import to_line

    typer.echo(to_line(facts_of(file, classes)))


@handle_errors
def enrol(
    files: Annotated[
        list[Path], typer.Argument(metavar="w00.json w01.json ...", help="One for each worker.")
    ],
    out: Annotated[
        Path, typer.Option(help="The file for 'dystop coordinator --enrolment'.")
    ] = Path("enrolment.json"),
) -> None:
    """Combine the facts about all workers' data; print what the configuration needs."""
    from dystop.config.write import dumps
    from dystop.data.private import combine, read_facts
    from dystop.testbed.setup.enrolment import check_member_files
    from dystop.testbed.setup.enrolment import enrol as write

    check_member_files(files)
    facts = {path.stem: read_facts(path) for path in sorted(files, key=lambda path: path.stem)}
    agreed = combine(list(facts.values()))
    write(out, facts, agreed.classes)
    shown = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(agreed).items()}
    count = plural(len(facts), "worker")
    typer.echo(f"{out}: {count}. The configuration of all parties needs:\n", err=True)
    typer.echo(dumps({"fleet": {"workers": len(facts)}, "data": {"private": shown}}), nl=False)


_COMMANDS: dict[str, Callable[..., None]] = {
    "import": import_,
    "partition": partition,
    "describe": describe,
    "enrol": enrol,
}
for _name, _command in _COMMANDS.items():
    data.command(_name)(_command)
