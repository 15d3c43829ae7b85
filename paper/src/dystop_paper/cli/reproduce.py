"""`dystop reproduce`: reproduce figures of the paper, with a verdict on each claim."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Jobs, On, Quiet
from dystop.cli.packages import command
from dystop.cli.studies.study import choose_engine, run_remaining
from dystop.cli.terminal import echo, handle_errors, show_table
from dystop.errors import ConfigError
from dystop.units import are
from dystop_paper.cli.readings import Search, search_readings

if TYPE_CHECKING:
    from dystop.config import Experiment
    from dystop.studies.executors.choice import Choice
    from dystop.studies.study import Study
    from dystop_paper.data.measures import AccuracyOf
    from dystop_paper.data.verdicts import ClaimVerdict
    from dystop_paper.pages.verdict import VerdictRequest
    from dystop_paper.reproduce.campaigns import Scale
    from dystop_paper.reproduce.progress import Place
    from dystop_paper.reproduce.recipes import Recipe

ALL = "all"
READINGS = "readings"
OUT = Path("reproduce")


class Size(StrEnum):
    """The size of the runs of a recipe."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class Accuracy(StrEnum):
    """The models whose test accuracy is used."""

    own = "own"
    whole = "global"


_SCALES: "dict[Size, Scale]" = {Size.smoke: "smoke", Size.small: "small", Size.paper: "paper"}


@dataclass(frozen=True)
class Request:
    """Which runs of a recipe to run, and how."""

    scale: "Scale"
    seeds: int | None
    words: Sequence[str]
    out: Path
    choice: "Choice"
    only: Sequence[str]
    whose: "AccuracyOf"
    quiet: bool

    def place(self, recipe: "Recipe") -> "Place":
        """Return the folder of this recipe at this scale, under its reading."""
        from dystop_paper.reproduce.campaigns import reading_of
        from dystop_paper.reproduce.progress import Place

        return Place(self.out, self.scale, reading_of(recipe.campaign, self.words))

    @property
    def suffix(self) -> str:
        """The end of the names of pages that use another accuracy than the paper."""
        return "" if self.whose == "own" else f"-{self.whose}"

    def command(self, recipe: "Recipe", *, here: bool) -> str:
        """Return the command that runs this recipe again; with `here`, in this folder."""
        seeds = ["--seeds", str(self.seeds)] if self.seeds else []
        only = [part for text in self.only for part in ("--only", text)]
        whose = ["--accuracy", self.whose] if self.whose != "own" else []
        place = ["--out", str(self.out)] if here and self.out != OUT else []
        place += ["--on", self.choice.on] if here and self.choice.on != "local" else []
        first = ["dystop", "reproduce", recipe.name, "--scale", self.scale]
        return shlex.join([*first, *seeds, *only, *whose, *place, *self.words])

    def of_verdict(self, recipe: "Recipe") -> "VerdictRequest":
        """Return the request as the verdict page of a recipe shows it."""
        from dystop_paper.pages.verdict import VerdictRequest

        command = replace(self, only=()).command(recipe, here=False)
        reading = self.place(recipe).reading
        return VerdictRequest(self.scale, self.whose, tuple(self.words), command, reading)


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
    jobs: Jobs = None,
    on: On = "local",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only runs with TEXT in their names; repeatable."),
    ] = None,
    accuracy: Annotated[
        Accuracy,
        typer.Option(help="Accuracy of the workers' own models (as in the paper) or the global."),
    ] = Accuracy.own,
    samples: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="readings: random readings. [default: 1, 20 or 0 by scale]"
        ),
    ] = None,
    best: Annotated[
        int,
        typer.Option(min=0, metavar="K", help="readings: the K nearest of the search at small."),
    ] = 0,
    show: Annotated[
        bool, typer.Option("--list", help="Show the recipes and their progress.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures of the paper's evaluation and show which of its claims hold.

    Recipes share runs: a finished run is never repeated. 'all' names every recipe. KEY=VALUE words
    change the runs, for example training.device=cuda. Use --only to run a large recipe in pieces
    (--only phi0.4, --only matcha); a claim is decided as soon as all its runs have finished.

    Recipes follow the letter of the paper. reading=physical, reading=nearest or reading=none
    replaces it, and has results of its own ('dystop list readings' shows what each sets).

    'readings' is a search: it runs readings of the paper at random (--samples 20 at small scale,
    then --scale paper --best 5), and says which one comes nearest to the paper's numbers.
    """
    size = _SCALES[scale]
    if show or not names:
        _list(out, size, names or [])
        return
    from dystop_paper.reproduce.recipes import RECIPES, recipe_of

    names, choice = choose_engine(names, on, jobs)
    words = [word for word in names if "=" in word]
    wanted = [word for word in names if "=" not in word]
    if READINGS in wanted:
        if len(wanted) > 1:
            raise ConfigError(f"command line: {READINGS} is a search of its own; name it alone")
        search_readings(Search(size, samples, best, seeds, words, out, choice, only or [], quiet))
        return
    chosen = list(RECIPES.values()) if wanted == [ALL] else [recipe_of(name) for name in wanted]
    whose: AccuracyOf = "own" if accuracy is Accuracy.own else "global"
    request = Request(size, seeds, words, out, choice, only or [], whose, quiet)
    for recipe in chosen:
        _write_verdict(recipe, _run(recipe, request), request)
    _update_other_pages(chosen, request)
    _write_papers(chosen, request)


def _list(out: Path, scale: "Scale", words: Sequence[str]) -> None:
    """Show every recipe with its cost and its progress."""
    from dystop_paper.reproduce.campaigns import reading_of
    from dystop_paper.reproduce.progress import Place, cost, done
    from dystop_paper.reproduce.recipes import RECIPES

    rows = [
        [r.name, r.title, ", ".join(r.labels) or "-", r.campaign.name, cost(r, scale),
         done(r, Place(out, scale, reading_of(r.campaign, words)))]
        for r in RECIPES.values()
    ]  # fmt: skip
    show_table(("recipe", "what", "paper", "runs", f"cost, {scale}", "done here"), rows)


def _run(recipe: "Recipe", request: Request) -> "Study":
    """Run the requested runs that have not finished; return the whole study."""
    from dystop_paper.reproduce.progress import study_of

    study = study_of(recipe, request.place(recipe), request.seeds, request.words)
    wanted = tuple(e for e in study.experiments if _is_selected(e.name, request.only))
    if not wanted:
        names = ", ".join(experiment.name for experiment in study.experiments)
        raise ConfigError(f"--only {' --only '.join(request.only)}: matches none of: {names}")
    _reuse_finished(study, wanted, quiet=request.quiet)
    resume = request.command(recipe, here=True)
    remaining = replace(study, experiments=wanted)
    run_remaining(remaining, request.choice, quiet=request.quiet, resume=resume)
    return study


def _reuse_finished(study: "Study", wanted: "Sequence[Experiment]", *, quiet: bool) -> None:
    """Copy runs with the same settings that another recipe has finished."""
    from dystop_paper.reproduce.run_reuse import reuse_finished

    for experiment, source in reuse_finished(study, wanted):
        if not quiet:
            origin = f"{source.parent.name}/{source.name}"
            echo(f"{study.path.name}/{experiment.name}: copied from the equal run {origin}")


def _is_selected(name: str, only: Sequence[str]) -> bool:
    return not only or any(text in name for text in only)


def _write_verdict(recipe: "Recipe", study: "Study", request: Request) -> None:
    from dystop_paper.pages.verdict import arm_runs, count_verdicts, write_verdict
    from dystop_paper.reproduce.progress import runs_by_arm

    if (left := len(study.todo())) and not request.quiet:
        echo(f"{recipe.name}: {left} of {are(len(study.experiments), 'run')} not finished yet")
    runs = arm_runs(recipe, runs_by_arm(study), request.whose)
    if not runs:
        return
    page = request.place(recipe).page(recipe, request.suffix)
    report = write_verdict(recipe, request.of_verdict(recipe), runs, page)
    if request.quiet:
        return
    _show(report.verdicts)
    echo(f"{recipe.name}: {count_verdicts(report.verdicts)}")
    echo(f"verdict: {report.files.html}")


def _show(rows: "list[ClaimVerdict]") -> None:
    if rows:
        lines = [[row.claim, row.paper, row.ours, row.verdict] for row in rows]
        show_table(("claim", "paper", "ours", "verdict"), lines)


def _update_other_pages(chosen: "Sequence[Recipe]", request: Request) -> None:
    """Rewrite the existing pages of other recipes that use the same runs."""
    from dystop_paper.reproduce.recipes import RECIPES

    campaigns = {recipe.campaign.name for recipe in chosen}
    for recipe in RECIPES.values():
        if recipe in chosen or recipe.campaign.name not in campaigns:
            continue
        study = request.place(recipe).study(recipe)
        if study is not None and _has_page(recipe, request):
            _write_verdict(recipe, study, replace(request, quiet=True))


def _has_page(recipe: "Recipe", request: Request) -> bool:
    return (request.place(recipe).page(recipe, request.suffix) / "report.html").is_file()


def _write_papers(chosen: "Sequence[Recipe]", request: Request) -> None:
    """Write the page of the whole paper under each reading that was asked for."""
    for place in dict.fromkeys(request.place(recipe) for recipe in chosen):
        _write_paper(place, request)


def _write_paper(place: "Place", request: Request) -> None:
    """Write the page of the whole paper from every recipe that has a page in this folder."""
    from dystop.storage import write_atomic
    from dystop_paper.pages.verdict import VerdictRequest, arm_runs, render_paper
    from dystop_paper.reproduce.progress import runs_by_arm
    from dystop_paper.reproduce.recipes import RECIPES

    pages = {}
    for recipe in RECIPES.values():
        if request.place(recipe) != place or not _has_page(recipe, request):
            continue
        study = place.study(recipe)
        if study is not None and (arms := runs_by_arm(study)):
            pages[recipe.name] = arm_runs(recipe, arms, request.whose)
    page = place.folder / f"paper{request.suffix}.html"
    verdicts = VerdictRequest(request.scale, request.whose, reading=place.reading)
    write_atomic(page, render_paper(pages, verdicts, request.suffix).encode())
    if not request.quiet:
        echo(f"all recipes so far: {page}")


app = command(
    reproduce,
    "dystop reproduce --list                      every figure, its cost, what is done",
    "dystop reproduce fig-completion-time         on two cores, in minutes",
    "dystop reproduce fig-staleness --scale paper --jobs 12",
    "dystop reproduce all --scale smoke           does everything run?",
)
