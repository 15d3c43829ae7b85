"""The page of a search over readings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.config.readings import OPEN_READINGS
from dystop.folders.run_folder import RunData, open_run
from dystop.report.data.scores import evaluated_rounds
from dystop.report.figures.style import Plot
from dystop.report.pages.files import ReportFiles, write_files
from dystop.report.pages.html import inline_figures, render_template
from dystop.studies.study import Study
from dystop.units import goal, number, plural
from dystop_paper.data.group_fit import fit_sentences, fits, is_within
from dystop_paper.data.measures import ArmRuns, format_measure
from dystop_paper.data.nearness import (
    GROUPS,
    SIMULATED,
    ReadingResult,
    common_numbers,
    judge_reading,
    with_numbers,
)
from dystop_paper.data.verdicts import FAR, NEAR, Verdict
from dystop_paper.figures.readings import distances_by_value, distances_on_both
from dystop_paper.pages.reading_tables import (
    READINGS_CSV,
    VERDICTS,
    ClaimRow,
    as_csv,
    claims_table,
    numbers_table,
    readings_table,
    run_row,
    runs_table,
    verdicts_table,
)
from dystop_paper.pages.verdict import SCALE_NOTES
from dystop_paper.reproduce.campaigns import Scale
from dystop_paper.reproduce.distance import FACTOR, Number
from dystop_paper.reproduce.reading_runs import Part, ReadingRun, finished_runs

SHOWN = 10
_RATIOS = (
    "Small scale trains a linear model in the place of the CNN, which counts as the CNN on the "
    "wire: its seconds, bytes and accuracies cannot be compared with the paper's. Distances are "
    "those of ratios between mechanisms, and of staleness, which is planned with 100 workers."
)
_STAND_IN = (
    "CIFAR-10 is a stand-in at this scale: the same linear model on the images of fmnist-mini. It "
    "counts as ResNet-18 on the wire (45 MB), so that transfers take seconds to minutes. Its "
    "accuracies count as shares of DySTop's at phi = 0.4. Accuracy, time and traffic at other "
    "values of V and s count as shares of those at V = 10 and s = 7."
)
_BOARDS = (
    "SVHN and CIFAR-100, the data sets of the paper's testbed, are stand-ins at this scale: the "
    "same linear model on fmnist-mini, on 15 workers of the paper's classes of boards. It counts "
    "as SqueezeNet (2.9 MB) and MobileNet-V2 (9.5 MB) on the wire, and a local epoch has as many "
    "mini-batches as the paper's."
)
_NO_TESTBED = (
    "The runs on SVHN and CIFAR-100 are simulated under the law of the reading. Real processes "
    "follow a law of their own (engine.timing = testbed)."
)
_NOT_AFFORDABLE = (
    "Readings with background pushes are not run on CIFAR-10: a worker trains hundreds of times "
    "while one model travels, and a run would have millions of rounds. DySTop pushes nothing: its "
    "settings are run under every reading."
)


@dataclass(frozen=True)
class NumberRow:
    """One number of the paper beside what the readings give."""

    name: str
    paper: str
    nearest: str  # what the nearest reading of its data set gives
    closest: str  # what comes closest in any reading, and which
    verdict: str  # whether any reading gives it


@dataclass(frozen=True)
class SearchReport:
    """The files of a search, and what they say."""

    files: ReportFiles
    ranked: list[ReadingResult]  # nearest first
    fit: list[str]  # whether one reading fits both data sets, in sentences
    numbers: list[NumberRow]
    claims: list[ClaimRow]


class FinishedRuns:
    """The finished runs of a search. Each is read once: a search has a million rounds."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[RunData, Sequence[object]]] = {}

    def thin(self, folder: Path) -> RunData:
        """Return a run without the rounds that no claim needs; planning only keeps all."""
        return self._of(folder)[0]

    def row(self, folder: Path) -> Sequence[object]:
        """Return its line in the table of runs."""
        return self._of(folder)[1]

    def _of(self, folder: Path) -> tuple[RunData, Sequence[object]]:
        if folder not in self._read:
            run = open_run(folder)
            self._read[folder] = _thinned(run), run_row(folder.name, run)
        return self._read[folder]


def load_results(
    study: Study, runs: Sequence[ReadingRun], scale: Scale, finished: FinishedRuns
) -> list[ReadingResult]:
    """Judge every reading by its finished runs, nearest first; those that are incomplete last.

    Distances of complete readings are over the numbers that all of them have.
    """
    core, known = _core(runs), {run.part.name: run.part for run in runs}
    found = []
    for reading, parts in finished_runs(study, runs):
        arms = {
            name: (
                known[name],
                {
                    arm.key: ArmRuns(arm, tuple(map(finished.thin, folders[arm.key])))
                    for arm in known[name].arms
                    if arm.key in folders
                },
            )
            for name, folders in parts.items()
        }
        found.append(judge_reading(reading, arms, ratios_only=scale != "paper", core=core))
    found = counted_once(found)
    shared = common_numbers([result for result in found if result.is_complete])
    judged = [with_numbers(r, shared) if r.is_complete else r for r in found]
    return sorted(judged, key=lambda result: result.rank)


def counted_once(results: Sequence[ReadingResult]) -> list[ReadingResult]:
    """Leave out samples that have the values of a preset: they are the same reading."""
    named = [dict(r.reading.values) for r in results if r.reading.is_preset and r.is_complete]
    return [r for r in results if r.reading.is_preset or dict(r.reading.values) not in named]


def _core(runs: Sequence[ReadingRun]) -> list[Part]:
    """Return the parts of all distances: of a reading, and of a reading on one data set."""
    every = {run.part.name: run.part for run in runs}
    return [part for part in every.values() if part.has_distance]


def _rows(
    study: Study, runs: Sequence[ReadingRun], finished: FinishedRuns
) -> Iterator[Sequence[object]]:
    todo = {experiment.name for experiment in study.todo()}
    for name in dict.fromkeys(run.experiment.name for run in runs):
        if name not in todo:
            yield finished.row(study.path / name)


def _thinned(run: RunData) -> RunData:
    tests = evaluated_rounds(run.records)
    if not tests:
        return run
    last = [] if tests[-1] is run.records[-1] else run.records[-1:]
    return replace(run, records=[*tests, *last])


def write_search(
    study: Study, runs: Sequence[ReadingRun], scale: Scale, command: str, out: Path
) -> SearchReport | None:
    """Write `out/report.html`, its figure and its tables; None if no reading is complete."""
    finished = FinishedRuns()
    ranked = load_results(study, runs, scale, finished)
    if not ranked or not ranked[0].is_complete:
        return None
    complete = [result for result in ranked if result.is_complete]
    numbers, claims, fit = number_rows(ranked), claim_rows(ranked), fit_sentences(ranked)
    plots = _plots(ranked)
    page = render_template(
        "readings.html.jinja", package="dystop_paper",
        title="Which reading of the paper gives the paper's numbers?",
        lead=f"{plural(len(complete), 'reading')} at {scale} scale, "
        f"{plural(len(ranked[0].numbers), 'number')} of the paper. "
        f"{len(ranked) - len(complete)} more are not complete: their runs count in the tables of "
        "numbers and claims.",
        notices=_notices(scale, runs),
        fit=fit,
        missing=[row.name for row in numbers if row.verdict == "no"],
        groups=GROUPS.values(),
        factor=FACTOR,
        readings=[_reading_row(result) for result in _shown(ranked)],
        open_readings=[(r.label, r.key, ", ".join(map(str, r.values))) for r in OPEN_READINGS],
        numbers=numbers,
        claims=claims,
        verdicts=VERDICTS,
        charts=inline_figures(plots),
        command=command,
    )  # fmt: skip
    tables = {
        READINGS_CSV: as_csv(readings_table(ranked)),
        "numbers.csv": as_csv(numbers_table(ranked)),
        "verdicts.csv": as_csv(verdicts_table(ranked)),
        "claims.csv": as_csv(claims_table(claims)),
        "runs.csv": as_csv(runs_table(_rows(study, runs, finished))),
    }
    files = write_files(out, plots, page, ("png", "pdf"), tables)
    return SearchReport(files, complete, fit, numbers, claims)


def _notices(scale: Scale, runs: Sequence[ReadingRun]) -> list[str]:
    """Return what a reader must know about the scale, and about stand-ins."""
    trained = {run.part.data for run in runs if not run.part.is_planned}
    has_boards = bool(trained & {"svhn", "cifar100"})
    has_rivals = any(run.part.name == "main-cifar10" for run in runs)
    told = {
        SCALE_NOTES[scale]: True,
        _RATIOS: scale != "paper",
        _STAND_IN: "cifar10" in trained and scale == "small",
        _BOARDS: has_boards and scale == "small",
        _NOT_AFFORDABLE: has_rivals,
        _NO_TESTBED: has_boards,
    }
    return [text for text, is_told in told.items() if text and is_told]


def _plots(ranked: Sequence[ReadingResult]) -> list[Plot]:
    """Return the figures: of the distance, of those on other data sets, and of two of them."""
    every = [(r, d) for r in ranked if (d := r.distance) is not None]
    plots = [distances_by_value(every)] if every else []
    for group in list(GROUPS)[1:]:
        own = [(r, d) for r in ranked if (d := r.distance_on(group)) is not None]
        plots += [distances_by_value(own, group)] if own else []
    if any(r.groups.issuperset(SIMULATED) for r in ranked):
        plots.append(distances_on_both(ranked))
    return plots


def _shown(ranked: Sequence[ReadingResult]) -> list[ReadingResult]:
    """Return the nearest readings, and the presets wherever they are."""
    return [r for k, r in enumerate(ranked) if k < SHOWN or r.reading.is_preset]


def _reading_row(result: ReadingResult) -> tuple[str, ...]:
    counts = result.counts()
    values = "; ".join(f"{r.label} {result.reading.values[r.key]}" for r in OPEN_READINGS)
    return (
        result.reading.name,
        _distance_text(result),
        *("" if (d := result.distance_on(group)) is None else f"{d:.2f}" for group in GROUPS),
        "" if result.target is None else goal(result.target), str(result.seeds),
        *(str(counts[verdict]) for verdict in VERDICTS), values,
    )  # fmt: skip


def _distance_text(result: ReadingResult) -> str:
    if result.distance is not None:
        return f"{result.distance:.2f}"
    return "not run" if result.is_complete else "not complete"  # one data set alone was asked for


def number_rows(ranked: Sequence[ReadingResult]) -> list[NumberRow]:
    """Return each number of the paper with that of the nearest reading on its data set.

    Beside it stands the closest of all readings.
    """
    nearest: dict[str, ReadingResult] = {fit.group: fit.nearest for fit in fits(ranked)}
    names = dict.fromkeys(n.name for r in [ranked[0], *nearest.values()] for n in r.numbers)
    rows = []
    for name in names:
        first = next(n for r in [ranked[0], *nearest.values()] for n in r.numbers if n.name == name)
        chosen = nearest.get(first.group, ranked[0])
        own = next((n for n in chosen.numbers if n.name == name), first)
        every = [(n, result) for result in ranked for n in result.numbers if n.name == own.name]
        given = [pair for pair in every if is_within(pair[0], FAR)]  # a bound gives no number
        best, where = min(given or every, key=lambda pair: pair[0].distance)
        rows.append(
            NumberRow(
                own.name,
                _shown_number(replace(own, ours=own.paper, beyond=0)),
                _shown_number(own),
                f"{_shown_number(best)} ({where.reading.name})",
                _given(best),
            )
        )
    return rows


def _shown_number(found: Number) -> str:
    if found.ours is None:
        return "none"
    is_ratio = any(word in found.name for word in ("less", "grows", "of that of"))
    measure: Any = found.measure
    text = number(found.ours) if is_ratio else format_measure(found.ours, measure)
    return {0: "", 1: "more than ", -1: "less than "}[found.beyond] + text


def _given(best: Number) -> str:
    """Return whether the closest of all readings gives a number, by the rule of verdicts."""
    return "yes" if is_within(best, NEAR) else "nearly" if is_within(best, FAR) else "no"


def claim_rows(ranked: Sequence[ReadingResult]) -> list[ClaimRow]:
    """Return in how many readings each claim has each verdict."""
    found: dict[str, Counter[Verdict]] = {}
    for result in ranked:
        for part, row in result.verdicts:
            text = row.claim.rpartition(" to ")[0] if row.claim.endswith(" %") else row.claim
            found.setdefault(f"{part}: {text}", Counter())[row.verdict] += 1
    rows = []
    for claim, counts in found.items():
        decided = sum(counts.values()) - counts["undecided"]
        share = f"{counts['holds'] / decided:.0%}" if decided else "undecided"
        rows.append(ClaimRow(claim, tuple(counts[verdict] for verdict in VERDICTS), share))
    return rows
