"""`dystop bound` and `dystop gap`: a recorded run against theory, and against the simulator."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.options import Quiet, Trust
from dystop.cli.terminal import console, echo, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.experiments.bound import BoundReport
    from dystop.experiments.gap import GapReport, OnRound
    from dystop.sparse import Bools, Floats


class TimingLaw(StrEnum):
    """Values of `--timing`."""

    testbed = "testbed"
    paper = "paper"
    overlap = "overlap"


@handle_errors
def bound(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as in runs/NAME.")],
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Compare Theorem 1 and Theorem 2 with a run on a strongly convex problem.

    Repeats the run, computes all constants, and writes a figure and bound.json to RUN/bound/.
    """
    from dystop.experiments.bound import bound_of

    following = "following every model"
    with _progress(quiet, following) as on_round:
        found = bound_of(run, lambda done, total: on_round(following, done, total), trust=trust)
    _write_bound(run / "bound", found)
    if not quiet:
        _show_bound(found)
        echo(f"written: {run / 'bound'}")


@contextmanager
def _progress(quiet: bool, *tasks: str) -> Iterator["OnRound"]:
    """Show a bar over the rounds for each task, on a terminal only."""
    from rich.progress import Progress

    is_hidden = quiet or not sys.stdout.isatty()
    with Progress(console=console(), transient=True, disable=is_hidden) as bar:
        ids = {task: bar.add_task(task, total=None) for task in tasks}
        yield lambda task, done, total: bar.update(ids[task], completed=done, total=total)


def _show_bound(found: "BoundReport") -> None:
    marks = sorted({0, found.rounds // 4, found.rounds // 2, found.rounds})
    columns = ("round", "measured F - F*", "Lemma 1, followed", "Theorem 1, mended", "as printed")
    lines = (found.gap, found.recursion, found.theorem, found.literal)
    show_table(columns, [(str(t), *(f"{line[t]:.4g}" for line in lines)) for t in marks])
    show_table(("", ""), summary(found))


def summary(found: "BoundReport") -> list[tuple[str, str]]:
    """Return the constants and the verdicts as rows of a table."""
    from dystop.theory import bound as theory

    c, eta = found.constants, found.eta
    rows = [
        ("mu, L, eta", f"{c.mu:g}, {c.smoothness:.4g}, {eta:g}"),
        ("xi_i", _range(c.xi)),
        ("g_i*", _range(c.g_star)),
        ("rho; delta_i", f"{theory.rho(c.mu, eta):.6g}; {_range(theory.delta(c, eta))}"),
        ("tau_max", str(found.tau_max)),
        ("F*", f"{found.best:.10f}"),
        ("measured below Lemma 1", _where(found.gap <= found.recursion)),
        ("measured below Theorem 1", _where(found.gap <= found.theorem)),
        ("Lemma 1 at the end", _last_bound(found)),
        ("and in the long run", _range(theory.noise_floor(c, eta))),
    ]
    if found.gap_seconds is not None:
        rows += [
            ("Theorem 2: T Gamma / V", _allowance(found.gap_seconds, found.durations_s)),
            ("duration of the run", f"{found.durations_s:.4g} s"),
            ("sum of q (tau - bound)", f"{found.pressure:.4g}{_sign(found.pressure)}"),
        ]
    return rows


def _range(values: "Floats") -> str:
    return f"{values.min():.3g} to {values.max():.3g}"


def _where(below: "Bools") -> str:
    """Say in which rounds a bound holds; index 0 is before the first round."""
    if below.all():
        return "in every round"
    missed = (~below).nonzero()[0]
    return f"NOT at {len(missed)} of {len(below)} points, first after round {missed[0]}"


def _last_bound(found: "BoundReport") -> str:
    """Compare the last bound with the gap at the start of the run."""
    last, start = float(found.recursion[-1]), found.start
    empty = "" if last < start else ": it guarantees no progress"
    return f"{last:.4g}; F(w_0) - F* was {start:.4g}{empty}"


def _allowance(gap_s: float, duration_s: float) -> str:
    """Say how much longer than the best run Theorem 2 allows."""
    if math.isinf(gap_s):
        return "unlimited, because V = 0: the bound says nothing"
    empty = (
        ", more than the duration of the run: the bound says nothing" if gap_s >= duration_s else ""
    )
    return f"{gap_s:.4g} s (largest Gamma met){empty}"


def _sign(pressure: float) -> str:
    """Say whether the sum is not positive, as the proof of Theorem 2 needs it."""
    return " (the proof needs 0 or less)" if pressure > 0 else " (0 or less, as the proof needs)"


def _write_bound(folder: Path, found: "BoundReport") -> None:
    from dystop.report.figures.analysis import bound_figure
    from dystop.report.figures.svg import save
    from dystop.report.pages.files import make_folders
    from dystop.storage import write_atomic

    make_folders(folder)
    figure = bound_figure(found).figure
    assert figure is not None  # it is always drawn
    for kind in ("png", "pdf", "svg"):
        write_atomic(folder / f"bound.{kind}", save(figure, kind))
    text = json.dumps(_tree(found), indent=1, allow_nan=False)
    write_atomic(folder / "bound.json", f"{text}\n".encode())


def _tree(found: "BoundReport") -> dict[str, Any]:
    """Return all numbers as JSON; null for an infinite or a missing one."""
    from dystop.theory import bound as theory

    names = ("gap", "recursion", "theorem", "literal")
    c = found.constants
    return {
        **{name: [_number(v) for v in getattr(found, name).tolist()] for name in names},
        "mu": c.mu,
        "L": c.smoothness,
        "eta": found.eta,
        "rho": theory.rho(c.mu, found.eta),
        "xi": c.xi.tolist(),
        "g_star": c.g_star.tolist(),
        "delta": theory.delta(c, found.eta).tolist(),
        "tau_max": found.tau_max,
        "F_star": found.best,
        "start": found.start,
        "holds": found.holds,
        "gamma": found.gamma,
        "pressure": found.pressure,
        "theorem_2_gap_s": _number(found.gap_seconds),
        "duration_s": found.durations_s,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@handle_errors
def gap(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a testbed run.")],
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write all numbers to FILE; -: print them."
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train/--no-train",
            help="Train models in both simulations; without it, times and plans are compared.",
        ),
    ] = True,
    timing: Annotated[
        TimingLaw,
        typer.Option(help="Timing law of the simulation; real workers follow testbed."),
    ] = TimingLaw.testbed,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Compare the simulator with a run of the testbed.

    Replays and simulates the run, and writes a page, figures and gap.json to RUN/gap/. A run that
    was interrupted is compared as far as it got. If engine.timing of the run is another law, a
    further column shows what that law would give.
    """
    _check_json_file(json_file)
    from dystop.experiments.gap import TASKS, gap_of, to_tree
    from dystop.report.pages.gap import write_gap

    printed = json_file == "-"
    with _progress(quiet or printed, *TASKS) as on_round:
        found = gap_of(run, on_round, train=train, trust=trust, timing=timing.value)
    page = write_gap(found, run / "gap").html
    text = json.dumps(to_tree(found), indent=1, allow_nan=False)
    for path in [str(run / "gap" / "gap.json"), *([json_file] if json_file else [])]:
        _write_text(path, text)
    if not quiet and not printed:
        _show_gap(found)
        echo(f"report: {page}")


def _check_json_file(json_file: str | None) -> None:
    """Refuse a file that cannot be written before the work begins."""
    from dystop.errors import ConfigError

    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise ConfigError(
            f"command line: --json {json_file}; expected a file in a folder that exists, or -"
        )


def _write_text(target: str, text: str) -> None:
    from dystop.errors import StorageError
    from dystop.storage import write_atomic

    if target == "-":
        echo(text)
        return
    try:
        write_atomic(Path(target), f"{text}\n".encode(), durable=False)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from None


def _show_gap(found: "GapReport") -> None:
    from dystop.report.pages.gap import PREDICTIONS, columns, comparison, law_text, predictions

    show_table(columns(found)[:-1], [row[:-1] for row in comparison(found)])
    echo(law_text(found))
    show_table(PREDICTIONS[:-1], [row[:-1] for row in predictions(found)])
