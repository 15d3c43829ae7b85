"""`dystop reproduce`: a figure of the paper, with a verdict."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.terminal import echo, handle_errors, show_table
from dystop.errors import ConfigError
from dystop.units import are

if TYPE_CHECKING:
    from dystop.experiments.config import Experiment
    from dystop.experiments.reproduce.campaigns import Scale
    from dystop.experiments.reproduce.recipes import Recipe
    from dystop.experiments.study import Study
    from dystop.report.data.measures import AccuracyOf
    from dystop.report.data.verdicts import ClaimVerdict
    from dystop.report.pages.verdict import VerdictRequest

ALL = "all"
OUT = Path("reproduce")


class Size(StrEnum):
    """How large the recipe is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class Accuracy(StrEnum):
    """Whose test accuracy counts."""

    own = "own"
    whole = "global"


_SCALES: "dict[Size, Scale]" = {Size.smoke: "smoke", Size.small: "small", Size.paper: "paper"}


@dataclass(frozen=True)
class Order:
    """What to run of a recipe, and how."""

    scale: "Scale"
    seeds: int | None
    words: Sequence[str]
    out: Path
    jobs: int
    only: Sequence[str]
    whose: "AccuracyOf"
    quiet: bool

    @property
    def suffix(self) -> str:
        """Ends the names of pages that count another accuracy than the paper."""
        return "" if self.whose == "own" else f"-{self.whose}"

    def command(self, recipe: "Recipe", *, here: bool) -> str:
        """The command line that asks for this recipe again, in this folder or anywhere."""
        seeds = ["--seeds", str(self.seeds)] if self.seeds else []
        only = [part for text in self.only for part in ("--only", text)]
        whose = ["--accuracy", self.whose] if self.whose != "own" else []
        place = ["--out", str(self.out)] if here and self.out != OUT else []
        first = ["dystop", "reproduce", recipe.name, "--scale", self.scale]
        return shlex.join([*first, *seeds, *only, *whose, *place, *self.words])

    def asked(self, recipe: "Recipe") -> "VerdictRequest":
        """The same for a page."""
        from dystop.report.pages.verdict import VerdictRequest

        command = replace(self, only=()).command(recipe, here=False)
        return VerdictRequest(self.scale, self.whose, tuple(self.words), command)


@handle_errors
def reproduce(  # noqa: PLR0913 - every parameter is an option of the command
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE... KEY=VALUE...", show_default=False),
    ] = None,
    scale: Annotated[Size, typer.Option(help="Size of the runs.")] = Size.small,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds. [default: 1, 2 or 3 by scale]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all reproductions.")] = OUT,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="J", help="Runs at the same time; pays off on a GPU.")
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only runs with this in their names; may be repeated."),
    ] = None,
    accuracy: Annotated[
        Accuracy,
        typer.Option(help="Whose counts: the workers' own models (the paper's) or the global one."),
    ] = Accuracy.own,
    show: Annotated[
        bool, typer.Option("--list", help="Show the recipes and what is done.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run a figure of the paper's evaluation again and say which of its claims hold.

    Recipes that look at the same runs share them; what is done is not done again. 'all' stands for
    every recipe. KEY=VALUE words change the runs, say training.device=cuda. With --only a large
    recipe is run piece by piece (--only phi0.4, --only matcha); claims are judged as soon as all
    that they are about is done.
    """
    size = _SCALES[scale]
    if show or not names:
        _list(out, size)
        return
    from dystop.experiments.reproduce.recipes import RECIPES, recipe_of

    words = [word for word in names if "=" in word]
    wanted = [word for word in names if "=" not in word]
    chosen = list(RECIPES.values()) if wanted == [ALL] else [recipe_of(name) for name in wanted]
    whose: AccuracyOf = "own" if accuracy is Accuracy.own else "global"
    order = Order(size, seeds, words, out, jobs, only or [], whose, quiet)
    for recipe in chosen:
        _judge(recipe, _run(recipe, order), order)
    _renew(chosen, order)
    _write_paper(order)


def _list(out: Path, scale: "Scale") -> None:
    """Every recipe: what it shows, what it costs, what of it is done."""
    from dystop.experiments.reproduce.progress import cost, done
    from dystop.experiments.reproduce.recipes import RECIPES

    rows = [
        [r.name, r.title, ", ".join(r.labels) or "-", r.campaign.name, cost(r, scale),
         done(r, scale, out)]
        for r in RECIPES.values()
    ]  # fmt: skip
    show_table(("recipe", "what", "paper", "runs", f"cost, {scale}", "done here"), rows)


def _run(recipe: "Recipe", order: Order) -> "Study":
    """Run what was asked for and is not done; returns the whole study."""
    from dystop.cli.study import run_remaining
    from dystop.experiments.reproduce.progress import study_of

    study = study_of(recipe, order.scale, order.seeds, order.words, order.out)
    wanted = tuple(e for e in study.experiments if _fits(e.name, order.only))
    if not wanted:
        names = ", ".join(experiment.name for experiment in study.experiments)
        raise ConfigError(f"--only {' --only '.join(order.only)}: fits none of the runs {names}")
    _take_over(study, wanted, quiet=order.quiet)
    resume = order.command(recipe, here=True)
    remaining = replace(study, experiments=wanted)
    run_remaining(remaining, order.jobs, quiet=order.quiet, resume=resume)
    return study


def _take_over(study: "Study", wanted: "Sequence[Experiment]", *, quiet: bool) -> None:
    """What another recipe has run with the same settings is not run again."""
    from dystop.experiments.reproduce.run_reuse import reuse_finished

    for experiment, source in reuse_finished(study, wanted):
        if not quiet:
            origin = f"{source.parent.name}/{source.name}"
            echo(f"{study.path.name}/{experiment.name}: the same run as {origin}, copied")


def _fits(name: str, only: Sequence[str]) -> bool:
    return not only or any(text in name for text in only)


def _judge(recipe: "Recipe", study: "Study", order: Order) -> None:
    from dystop.experiments.reproduce.progress import page_folder, runs_by_arm
    from dystop.report.pages.verdict import arm_runs, count_verdicts, write_verdict

    if (left := len(study.todo())) and not order.quiet:
        echo(f"{recipe.name}: {left} of {are(len(study.experiments), 'run')} still to do")
    runs = arm_runs(recipe, runs_by_arm(study), order.whose)
    if not runs:
        return
    page = page_folder(order.out, order.scale, recipe, order.suffix)
    report = write_verdict(recipe, order.asked(recipe), runs, page)
    if order.quiet:
        return
    _show(report.verdicts)
    echo(f"{recipe.name}: {count_verdicts(report.verdicts)}")
    echo(f"verdict: {report.files.html}")


def _show(rows: "list[ClaimVerdict]") -> None:
    if rows:
        lines = [[row.claim, row.paper, row.ours, row.verdict] for row in rows]
        show_table(("claim", "paper", "ours", "verdict"), lines)


def _renew(chosen: "Sequence[Recipe]", order: Order) -> None:
    """Pages of other recipes that look at the same runs, if they were written before."""
    from dystop.experiments.reproduce.progress import known_study
    from dystop.experiments.reproduce.recipes import RECIPES

    campaigns = {recipe.campaign.name for recipe in chosen}
    for recipe in RECIPES.values():
        if recipe in chosen or recipe.campaign.name not in campaigns:
            continue
        study = known_study(recipe, order.scale, order.out)
        if study is not None and _has_page(recipe, order):
            _judge(recipe, study, replace(order, quiet=True))


def _has_page(recipe: "Recipe", order: Order) -> bool:
    from dystop.experiments.reproduce.progress import page_folder

    page = page_folder(order.out, order.scale, recipe, order.suffix)
    return (page / "report.html").is_file()


def _write_paper(order: Order) -> None:
    """The page of the whole paper, from every recipe that has a page here."""
    from dystop.experiments.reproduce.progress import known_study, runs_by_arm
    from dystop.experiments.reproduce.recipes import RECIPES
    from dystop.report.pages.verdict import VerdictRequest, arm_runs, render_paper
    from dystop.storage import write_atomic

    pages = {}
    for recipe in RECIPES.values():
        study = known_study(recipe, order.scale, order.out) if _has_page(recipe, order) else None
        if study is not None and (arms := runs_by_arm(study)):
            pages[recipe.name] = arm_runs(recipe, arms, order.whose)
    page = order.out / order.scale / f"paper{order.suffix}.html"
    write_atomic(
        page, render_paper(pages, VerdictRequest(order.scale, order.whose), order.suffix).encode()
    )
    if not order.quiet:
        echo(f"all recipes so far: {page}")
