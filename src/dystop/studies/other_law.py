"""The runs of a comparison planned under the other law of time, without training.

Under the paper's law a mechanism that wakes few workers at a time waits for rounds. Planning takes
a small share of the time of training, and says when each run would have trained as many epochs
under the law `overlap` as at each of its evaluations. `STUDY/other-law.json` keeps these times.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dystop.config import Experiment
from dystop.control.laws import OverlapLaw
from dystop.errors import DystopError
from dystop.folders.run_folder import open_run
from dystop.record import RoundRecord
from dystop.storage import try_read_json, write_atomic
from dystop.studies.study import Study

OTHER_LAW = "other-law.json"
MOST_S = 10.0
"""Estimated seconds of planning up to which a study is planned."""
_ROUND_S, _WORKER_S = 250e-6, 12e-6  # of planning a round, and more for each worker
_MORE_ROUNDS = 4  # times the recorded rounds, after which planning ends


@dataclass(frozen=True)
class OtherLaw:
    """When runs would have trained as many epochs under another law as at their evaluations."""

    law: str
    clocks_s: Mapping[str, Sequence[float]]  # by run; shorter where the planned run ends before


def plan_other_law(study: Study) -> bool:
    """Plan the runs of a comparison under the law `overlap`; return whether it was possible.

    It is not where it would take long, or where a mechanism needs trained models for its plans.
    """
    if (study.path / OTHER_LAW).exists():
        return True
    histories = [open_run(study.folder(e)).records for e in study.experiments]
    needs_s = sum(planning_s(len(rows), e.fleet.workers) for e, rows in _with(study, histories))
    if needs_s > MOST_S or not all(map(_can_be_planned, study.experiments)):
        return False
    found = {}
    with suppress(DystopError):
        found = {e.name: _clocks_s(e, rows) for e, rows in _with(study, histories)}
        content = json.dumps({"law": OverlapLaw.name, "clocks_s": found}) + "\n"
        write_atomic(study.path / OTHER_LAW, content.encode())
    return bool(found)


def planning_s(rounds: int, workers: int) -> float:
    """Return about how many seconds the planning of one run takes.

    >>> round(planning_s(rounds=1500, workers=24), 2)
    0.81
    """
    return rounds * (_ROUND_S + _WORKER_S * workers)


def read_other_law(path: Path) -> OtherLaw | None:
    """Return what was planned for a study; None if nothing was."""
    content = try_read_json(path / OTHER_LAW)
    law, clocks = content.get("law"), content.get("clocks_s")
    if not isinstance(law, str) or not isinstance(clocks, dict):
        return None
    good = all(
        isinstance(row, list) and all(isinstance(s, int | float) for s in row)
        for row in clocks.values()
    )
    return OtherLaw(law, clocks) if good else None


def _with(
    study: Study, histories: Sequence[Sequence[RoundRecord]]
) -> "zip[tuple[Experiment, Sequence[RoundRecord]]]":
    return zip(study.experiments, histories, strict=True)


def _can_be_planned(experiment: Experiment) -> bool:
    return (
        experiment.engine.train and not experiment.engine.law.starts_alone and not experiment.trace
    )


def _clocks_s(experiment: Experiment, records: Sequence[RoundRecord]) -> list[float]:
    """Return when the planned run has trained what the recorded one had at each evaluation."""
    from dystop.runs.simulation import (
        Simulation,  # imports torch, which a report does without
    )

    epochs = [r.epochs_total for r in records if r.accuracy is not None]
    planned = Simulation(
        replace(
            experiment,
            engine=replace(experiment.engine.under(OverlapLaw.name), train=False),
            stop=replace(experiment.stop, accuracy=0.0, loss=0.0),
        )
    )
    out: list[float] = []
    for record in islice(planned, _MORE_ROUNDS * len(records)):
        while len(out) < len(epochs) and record.epochs_total >= epochs[len(out)]:
            out.append(record.clock_s)
        if len(out) == len(epochs):
            break
    return out
