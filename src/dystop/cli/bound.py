"""`dystop bound`: the paper's two theorems against a recorded run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.guard import guarded
from dystop.cli.tables import show_table

if TYPE_CHECKING:
    from dystop.experiments.bound import BoundReport


@guarded
def bound(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as in runs/NAME.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Hold Theorem 1 and Theorem 2 against a run of a strongly convex problem.

    The run is repeated, all constants are computed, and RUN/bound/ gets a figure and bound.json.
    """
    from dystop.experiments.bound import bound_of

    with _progress(quiet) as step:
        found = bound_of(run, step)
    _write(run / "bound", found)
    if not quiet:
        _show(found)
        typer.echo(f"written: {run / 'bound'}")


def _progress(quiet: bool) -> Any:
    """A bar over the rounds, on a terminal only."""
    from contextlib import contextmanager

    from rich.progress import Progress

    from dystop.cli.tables import console

    @contextmanager
    def showing() -> Any:
        with Progress(console=console(), transient=True, disable=quiet) as bar:
            task = bar.add_task("following every model", total=None)
            yield lambda done, all_: bar.update(task, completed=done, total=all_)

    return showing()


def _show(found: "BoundReport") -> None:
    marks = sorted({0, found.rounds // 4, found.rounds // 2, found.rounds})
    columns = ("round", "measured F - F*", "Lemma 1, followed", "Theorem 1, mended", "as printed")
    lines = (found.gap, found.recursion, found.theorem, found.literal)
    show_table(columns, [(str(t), *(f"{line[t]:.4g}" for line in lines)) for t in marks])
    show_table(("", ""), summary(found))


def summary(found: "BoundReport") -> list[tuple[str, str]]:
    """The constants and the verdicts, as rows of a table."""
    c = found.constants
    rows = [
        ("mu, L, eta", f"{c.mu:g}, {c.smoothness:.4g}, {found.eta:g}"),
        ("xi_i", f"{c.xi.min():.3g} to {c.xi.max():.3g}"),
        ("g_i*", f"{c.g_star.min():.3g} to {c.g_star.max():.3g}"),
        ("F*", f"{found.best:.10f}"),
        ("measured below Lemma 1", "in every round" if found.holds else "NOT in every round"),
        ("measured below Theorem 1", _share(found)),
    ]
    if found.gap_seconds is not None:
        rows += [
            ("Theorem 2: T Gamma / V", f"{found.gap_seconds:.4g} s (largest Gamma met)"),
            ("duration of the run", f"{found.durations_s:.4g} s"),
            ("sum of q (tau - bound)", f"{found.pressure:.4g}{_sign(found.pressure)}"),
        ]
    return rows


def _share(found: "BoundReport") -> str:
    return f"{float((found.gap <= found.theorem).mean()):.0%} of the rounds"


def _sign(pressure: float) -> str:
    """The proof of Theorem 2 takes this sum to be negative."""
    return " (negative, as the proof assumes)" if pressure < 0 else " (the proof assumes negative)"


def _write(folder: Path, found: "BoundReport") -> None:
    from dystop.experiments.durable import write_atomic
    from dystop.report.bound import bound_figure
    from dystop.report.svg import save

    folder.mkdir(exist_ok=True)
    figure = bound_figure(found).figure
    assert figure is not None  # it is always drawn
    for kind in ("png", "pdf", "svg"):
        write_atomic(folder / f"bound.{kind}", save(figure, kind))
    write_atomic(folder / "bound.json", (json.dumps(_tree(found), indent=1) + "\n").encode())


def _tree(found: "BoundReport") -> dict[str, Any]:
    """All numbers as JSON; what grew beyond a float is left out."""
    import numpy as np

    def line(values: Any) -> list[float | None]:
        return [float(v) if np.isfinite(v) else None for v in values]

    names = ("gap", "recursion", "theorem", "literal")
    c = found.constants
    return {
        **{name: line(getattr(found, name)) for name in names},
        "mu": c.mu,
        "L": c.smoothness,
        "eta": found.eta,
        "xi": c.xi.tolist(),
        "g_star": c.g_star.tolist(),
        "F_star": found.best,
        "holds": found.holds,
        "gamma": found.gamma,
        "pressure": found.pressure,
        "theorem_2_gap_s": found.gap_seconds,
        "duration_s": found.durations_s,
    }
