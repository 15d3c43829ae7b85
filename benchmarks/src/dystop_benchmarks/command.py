"""`dystop bench`: how fast dystop is here, beside references measured in the same run."""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.packages import command
from dystop.cli.progress import new_bar
from dystop.cli.terminal import complain, echo, handle_errors, show_table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dystop_benchmarks.result import Sweep
    from dystop_benchmarks.settings import Settings
    from dystop_benchmarks.suite import Measured

_COLUMNS = ("", "measured", "median", "reference, same run", "median", "ratio (min to max)")
_REPEAT, _QUICK_REPEAT = 3, 2


class What(StrEnum):
    """What can be measured."""

    trainer = "trainer"
    optimisers = "optimisers"
    planner = "planner"
    mixing = "mixing"
    evaluation = "evaluation"
    waves = "waves"
    run = "run"
    startup = "startup"
    memory = "memory"
    wire = "wire"
    testbed = "testbed"


class BenchWatcher:
    """Shows which benchmark runs: a bar on a terminal, plain lines in a log."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._quiet, self._total, self._done = quiet, total, 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def begins(self, what: str) -> None:
        """Show that a benchmark starts."""
        self._show(what, "")

    def says(self, status: str) -> None:
        """Show what the benchmark does now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, status=status)

    def ends(self, what: str, seconds: float) -> None:
        """Show that a benchmark has ended."""
        self._done += 1
        self._show(what, "")
        if self._bar is None and not self._quiet:
            echo(f"{what}: measured in {seconds:.1f} s")

    def _show(self, what: str, status: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, completed=self._done, status=status)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the bar while benchmarks run."""
        if not self._quiet and sys.stdout.isatty():
            self._bar = new_bar()
            self._task = self._bar.add_task("bench", total=self._total, status="")
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()


def _check(quick: bool, full: bool, models: Sequence[str]) -> None:
    from dystop.errors import ConfigError, nearest
    from dystop.training.models.catalogue import MODELS

    if quick and full:
        raise ConfigError("command line: --quick and --full exclude each other; give one of them")
    for model in models:
        if model not in MODELS and ":" not in model:
            close = nearest(model, MODELS)
            raise ConfigError(
                f"command line: --model {model}; expected one of {', '.join(MODELS)} or "
                f"package.module:factory{close}"
            )


def _writable(json_file: str | None, plot: Path | None) -> None:
    """Refuse now what could not be written after two minutes."""
    from dystop.errors import ConfigError, StorageError

    if json_file is not None and json_file != "-":
        file = Path(json_file)
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise ConfigError(
                f"command line: --json {json_file}; expected a file in a folder that exists, or -"
            )
    if plot is not None:
        try:
            plot.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"command line: --plot {plot}: {error.strerror}") from None


def _settings(
    folder: Path,
    device: str,
    models: Sequence[str],
    amount: tuple[bool, bool, int | None],
    workers: int | None,
    seed: int,
    words: Sequence[str],
) -> "Settings":
    """Return the settings; what was left open is chosen for this device."""
    from dystop.training.device import pick_device
    from dystop_benchmarks import settings

    quick, full, repeat = amount
    where = pick_device(device)
    on_gpu = where.type == "cuda"
    usual = settings.DEVICE if on_gpu else settings.USUAL
    chosen = settings.QUICK if quick else settings.FULL if full else usual
    by_itself = not models and on_gpu and not quick
    return settings.Settings(
        device=where,
        models=tuple(models) or ("cnn",),
        also_trained=("resnet18",) if by_itself else (),
        scale=chosen,
        folder=folder,
        workers=workers or (20 if quick else None),
        repeat=repeat or (_QUICK_REPEAT if quick else _REPEAT),
        seed=seed,
        words=tuple(words),
        starts_cold=full or (on_gpu and not quick),
    )


def _show(done: "Measured") -> None:
    """Show the machine, the versions, and one row per line."""
    from dystop_benchmarks.machine import describe
    from dystop_benchmarks.result import row

    echo(describe(done.about["machine"]))
    versions = done.about["versions"]
    named = ", ".join(f"{k} {versions[k]}" for k in ("dystop", "python", "torch", "numpy", "numba"))
    echo(f"{named}; {done.date}; {sum(done.seconds.values()):.0f} s")
    if done.lines:
        show_table(_COLUMNS, [row(line) for line in done.lines])


def _write_json(result: dict[str, Any], target: str) -> None:
    from dystop.errors import StorageError

    text = json.dumps(result, indent=1)
    if target == "-":
        echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{target}: could not be written: {error.strerror}") from None


def _write_plots(sweeps: "dict[str, list[Sweep]]", folder: Path) -> list[Path]:
    """Draw two figures as PNG; return their files."""
    from dystop.report.figures.svg import save
    from dystop_benchmarks.figures import cost_models, cost_workers

    files = []
    for plot in (cost_workers(sweeps["workers"]), cost_models(sweeps["model_size"])):
        if plot.figure is not None:
            files.append(folder / f"{plot.key}.png")
            files[-1].write_bytes(save(plot.figure, "png"))
    return files


def _write(done: "Measured", json_file: str | None, plot: Path | None) -> None:
    """Show the table, or the JSON in its place; then write the files."""
    if json_file != "-":
        _show(done)
    if json_file is not None:
        _write_json(done.document(), json_file)
    files = [] if json_file in (None, "-") else [str(json_file)]
    if plot is not None and done.sweeps:
        files += map(str, _write_plots(done.sweeps, plot))
    if files and json_file != "-":
        echo(f"written: {', '.join(files)}")
    for what, why in done.failed.items():
        complain(f"{what} could not be measured: {why}")


@handle_errors
def bench(  # noqa: PLR0913 - every parameter is an option of the command
    what: Annotated[
        list[What] | None,
        typer.Argument(
            metavar="WHAT",
            help="What to measure; all of it if left out: " + ", ".join(What) + ".",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: half a minute.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's whole run, and planning for 1,000,000.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Repeats of each measurement. [default: 3]"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or the best there is.")] = "auto",
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Model; repeatable. [default: cnn; a GPU also trains resnet18]"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Workers. [default: 100, or what suits the model]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 0,
    words: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the configuration; repeatable."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write everything as JSON; - for the screen."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also draw cost against workers and model size."),
    ] = None,
) -> None:
    """Measure how fast dystop is here, always beside a reference taken in the same run.

    Every line of the table is a ratio, because seconds say more about the machine than about the
    program. What is compared is measured in turns, so a busy machine harms both sides alike.
    Images are generated; nothing is downloaded or kept.

    \b
    trainer     whole rounds against one model at one large batch, and plain loops
    planner     a round's decisions against their straight twin, and as the fleet grows
    mixing      the averaging of models against a plain loop and a memory copy
    evaluation  all models against one model at a large batch
    waves       mechanisms that wake one worker at a time against D-PSGD, and their decisions
    run         where the time of the paper's run goes, as shares of it
    startup     this command's help against an empty Python
    memory      the printed estimate against the measured peak
    wire        a model pulled over loopback against a TLS socket written by hand
    testbed     a coordinator under load, and a worker that serves while it trains
    """
    _check(quick, full, model or [])
    _writable(json_file, plot)
    from dystop_benchmarks.suite import measure, prepare

    chosen = [str(one) for one in what or What]
    watcher = BenchWatcher(len(chosen) + (plot is not None), quiet=json_file == "-")
    with tempfile.TemporaryDirectory(prefix="dystop-bench-") as folder:
        amount = (quick, full, repeat)
        asked = _settings(Path(folder), device, model or [], amount, workers, seed, words or [])
        done = prepare(asked)
        try:
            with watcher.showing():
                measure(done, chosen, watcher, sweep=plot is not None)
        finally:  # what was measured before an interruption is worth keeping
            _write(done, json_file, plot)
    if done.failed:
        raise typer.Exit(1)


app = command(
    bench,
    "dystop bench --quick",
    "dystop bench trainer --model cnn --workers 30 --repeat 5",
    "dystop bench trainer --model resnet18 --device cuda",
    "dystop bench trainer --set training.path=sequential",
    "dystop bench --json bench.json --plot figures",
    "dystop bench planner --full                  up to a million workers",
)
