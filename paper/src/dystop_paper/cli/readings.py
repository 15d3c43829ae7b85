"""`dystop reproduce readings`: search the readings of the paper for the one nearest to it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dystop.cli.studies.study import run_remaining
from dystop.cli.terminal import echo, show_table
from dystop.errors import ConfigError

if TYPE_CHECKING:
    from dystop.studies.executors.choice import Choice
    from dystop_paper.pages.readings import SearchReport
    from dystop_paper.reproduce.campaigns import Scale
    from dystop_paper.reproduce.reading_space import Reading

_SAMPLES: "dict[Scale, int]" = {"smoke": 1, "small": 20, "paper": 0}
_SHOWN = 10
_SEEDS: "dict[Scale, int]" = {"smoke": 1, "small": 1, "paper": 3}


@dataclass(frozen=True)
class Search:
    """Which readings to run, and how."""

    scale: "Scale"
    samples: int | None  # None: as many as the scale asks for
    best: int  # nearest samples of the search at small scale
    seeds: int | None
    words: Sequence[str]
    out: Path
    choice: "Choice"
    only: Sequence[str]
    quiet: bool

    @property
    def command(self) -> str:
        """The command that runs this search again, and resumes it."""
        from dystop_paper.reproduce.reading_runs import NAME

        words = ["dystop", "reproduce", NAME, "--scale", self.scale]
        words += [] if self.samples is None else ["--samples", str(self.samples)]
        words += ["--best", str(self.best)] if self.best else []
        words += ["--seeds", str(self.seeds)] if self.seeds else []
        words += [part for text in self.only for part in ("--only", text)]
        return shlex.join([*words, "--out", str(self.out), *self.words])


def search_readings(search: Search) -> None:
    """Run what is left of a search, and write its page; an interrupted one is written as far."""
    from dystop_paper.pages.readings import write_search
    from dystop_paper.reproduce.reading_runs import (
        Asked,
        search_folder,
        search_runs,
        study_of_runs,
    )
    from dystop_paper.reproduce.reading_space import check_words

    check_words(search.words)
    seeds = search.seeds or _SEEDS[search.scale]
    asked = Asked(search.scale, seeds, tuple(search.words), tuple(search.only))
    runs = search_runs(_readings(search), asked)
    if not runs:
        raise ConfigError(f"--only {' --only '.join(search.only)}: matches no run of the search")
    folder = search_folder(search.out, search.scale)
    study = study_of_runs(runs, folder)
    try:
        run_remaining(study, search.choice, quiet=search.quiet, resume=search.command)
    finally:
        report = write_search(study, runs, search.scale, search.command, folder)
        if report is not None and not search.quiet:
            _show(report)


def _readings(search: Search) -> "list[Reading]":
    """Return the presets, the samples, and the nearest samples of the search at small scale."""
    from dystop_paper.pages.reading_tables import nearest_samples
    from dystop_paper.reproduce.reading_runs import search_folder
    from dystop_paper.reproduce.reading_space import presets, reading_named, sample

    count = _SAMPLES[search.scale] if search.samples is None else search.samples
    found = {reading.name: reading for reading in presets()}
    if search.best:
        names = nearest_samples(search_folder(search.out, "small"), search.best)
        found |= {name: reading_named(name) for name in names}
    found |= {reading.name: reading for reading in map(sample, range(1, count + 1))}
    return list(found.values())


def _show(report: "SearchReport") -> None:
    from dystop_paper.data.nearness import GROUPS

    rows = [
        [r.reading.name, _text(r.distance), *(_text(r.distance_on(group)) for group in GROUPS)]
        for r in report.ranked[:_SHOWN]
    ]
    show_table(("reading", "distance", *(f"on {name}" for name in GROUPS.values())), rows)
    for sentence in report.fit:
        echo(sentence)
    missing = [row.name for row in report.numbers if row.verdict == "no"]
    echo(f"{len(missing)} of {len(report.numbers)} numbers are given by no reading")
    echo(f"readings: {report.files.html}")


def _text(distance: float | None) -> str:
    return "" if distance is None else f"{distance:.2f}"
