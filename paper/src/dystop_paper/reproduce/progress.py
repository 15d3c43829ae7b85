"""The folder of a reproduction, its cost, and its progress.

reproduce/SCALE/READING/
  runs/CAMPAIGN/     a study with the runs that several recipes share
  RECIPE/            the verdict page of one recipe
  paper.html         all verdicts
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.config import Experiment
from dystop.folders.run_folder import RunData, is_study, open_run
from dystop.studies.study import Study, create_study, find_study, open_study
from dystop_paper.reproduce.campaigns import SEEDS, Scale, experiments
from dystop_paper.reproduce.recipes import Recipe

RUNS = "runs"
_EACH: dict[Scale, dict[str, str]] = {
    "smoke": {"fmnist": "1 s", "cifar10": "1 s", "svhn": "1 s", "cifar100": "1 s"},
    "small": {"fmnist": "7 s", "cifar10": "10 s", "svhn": "6 s", "cifar100": "60 s"},
    "paper": {"fmnist": "20 s on a GPU", "cifar10": "2 min on a GPU", "svhn": "1 min on a GPU",
              "cifar100": "minutes on a GPU"},
}  # fmt: skip
"""Approximate time of one run: on two cores for smoke and small, on one H200 for paper."""


@dataclass(frozen=True)
class Place:
    """The folder of all reproductions at one scale under one reading of the paper."""

    out: Path
    scale: Scale
    reading: str

    @property
    def folder(self) -> Path:
        """The folder. Each reading has its own, so that their results are never mixed."""
        return self.out / self.scale / self.reading

    def page(self, recipe: Recipe, suffix: str = "") -> Path:
        """Return the folder of the verdict page of a recipe; a suffix names its variants."""
        return self.folder / f"{recipe.name}{suffix}"

    def study(self, recipe: Recipe) -> Study | None:
        """Return the study of a recipe; None if it does not exist in this folder."""
        path = self.folder / RUNS / recipe.campaign.name
        return open_study(path) if is_study(path) else None


def study_of(recipe: Recipe, place: Place, seeds: int | None, words: Sequence[str]) -> Study:
    """Find or create the study of a recipe; refuse an existing one with other settings."""
    every = experiments(recipe.campaign, place.scale, seeds or SEEDS[place.scale], words)
    folder, name = place.folder / RUNS, recipe.campaign.name
    return find_study(folder, name, every) or create_study(folder, name, every)


def runs_by_arm(study: Study) -> dict[str, list[RunData]]:
    """Return the runs of each finished arm of a study by its key, ordered by seed."""
    missing = {_arm(experiment) for experiment in study.todo()}
    found: dict[str, list[RunData]] = {}
    for experiment in study.experiments:
        if (arm := _arm(experiment)) not in missing:
            found.setdefault(arm, []).append(open_run(study.folder(experiment)))
    return found


def _arm(experiment: Experiment) -> str:
    return experiment.name.rpartition("-s")[0]


def cost(recipe: Recipe, scale: Scale) -> str:
    """Return the number of runs and the approximate time of each, in words."""
    runs = len(recipe.campaign.arms) * SEEDS[scale]
    return f"{runs} x {_EACH[scale][recipe.campaign.data]}"


def done(recipe: Recipe, place: Place) -> str:
    """Return the progress of a recipe in this folder, in words."""
    study = place.study(recipe)
    if study is None:
        return "-"
    left, total = len(study.todo()), len(study.experiments)
    page = (place.page(recipe) / "report.html").is_file()
    if left:
        return f"{total - left} of {total} runs"
    return "verdict" if page else "runs"
