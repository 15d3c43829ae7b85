"""`dystop bound`: a recorded run against the paper's theorems."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.options import Quiet, Trust
from dystop.cli.packages import command
from dystop.cli.progress import round_bars
from dystop.cli.terminal import echo, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.sparse import Bools, Floats
    from dystop_paper.bound import BoundReport


@handle_errors
def bound(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as in runs/NAME.")],
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Compare Theorem 1 and Theorem 2 with a run on a strongly convex problem.

    Repeats the run, computes all constants, and writes a figure and bound.json to RUN/bound/.
    """
    from dystop_paper.bound import bound_of

    following = "following every model"
    with round_bars(quiet, following) as on_round:
        found = bound_of(run, lambda done, total: on_round(following, done, total))
    _write_bound(run / "bound", found)
    if not quiet:
        _show_bound(found)
        echo(f"written: {run / 'bound'}")


def _show_bound(found: "BoundReport") -> None:
    marks = sorted({0, found.rounds // 4, found.rounds // 2, found.rounds})
    columns = ("round", "measured F - F*", "Lemma 1, followed", "Theorem 1, corrected", "printed")
    lines = (found.gap, found.recursion, found.theorem, found.literal)
    show_table(columns, [(str(t), *(f"{line[t]:.4g}" for line in lines)) for t in marks])
    show_table(("", ""), summary(found))


def summary(found: "BoundReport") -> list[tuple[str, str]]:
    """Return the constants and the verdicts as rows of a table."""
    from dystop_paper.theory import bound as theory

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
    from dystop.report.figures.svg import save
    from dystop.report.pages.files import make_folders
    from dystop.storage import write_atomic
    from dystop_paper.figures.bound import bound_figure

    make_folders(folder)
    figure = bound_figure(found).figure
    assert figure is not None  # it is always drawn
    for kind in ("png", "pdf", "svg"):
        write_atomic(folder / f"bound.{kind}", save(figure, kind))
    text = json.dumps(_tree(found), indent=1, allow_nan=False)
    write_atomic(folder / "bound.json", f"{text}\n".encode())


def _tree(found: "BoundReport") -> dict[str, Any]:
    """Return all numbers as JSON; null for an infinite or a missing one."""
    from dystop_paper.theory import bound as theory

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


app = command(
    bound,
    "dystop run model.name=softmax-unit training.l2=0.1 training.local_steps=1 \\",
    "    training.learning_rate=0.1 data.train_limit=2000 fleet.workers=10 --name convex",
    "dystop bound runs/convex",
)
