"""`dystop export`: take results into other tools."""

from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.terminal import echo, handle_errors
from dystop.experiments.export import Format


@handle_errors
def export(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY", help="A run, a comparison or a sweep.")
    ],
    to: Annotated[Format, typer.Option(help="The format.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to; default: in RUN|STUDY.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the run or the study ends.")
    ] = False,
) -> None:
    r"""Write a run or a study as tables, or into TensorBoard, Weights & Biases or MLflow.

    parquet, arrow and csv have four tables: rounds, workers, links and tests (evaluations). The
    rows of all runs of a study are in the same tables; the first columns name the run.
    tensorboard, wandb and mlflow get curves of all numbers of rounds and tests.

    The run may be finished, running or interrupted, simulated or on a testbed. Its files are only
    read. A repeated export replaces the earlier one. --follow ends with the run; Ctrl-C ends it
    earlier and keeps what was written.

    \b
    Some formats need a package:
      parquet, arrow   pip install 'dystop[parquet]'
      tensorboard      pip install 'dystop[tensorboard]'
      wandb            pip install 'dystop[wandb]'       WANDB_MODE=offline: write a folder
      mlflow           pip install 'dystop[mlflow]'      MLFLOW_TRACKING_URI: where to
    """
    from dystop.experiments.export.export import export as write
    from dystop.units import plural

    written = write(folder, to, out, follow=follow)
    echo(f"exported: {plural(written.rounds, 'round')} of {plural(written.runs, 'run')}")
    for path in written.paths:
        echo(f"  {path}")
