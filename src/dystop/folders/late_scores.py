"""`late_scores.jsonl`: scores that came after the record of their round was written.

A record of the testbed does not wait longer than `testbed.timeouts.score_s` for its score. A later
score gets a line of its own here, because `records.jsonl` only grows. Every reader of records joins
both files. A line holds the round and the fields of the record that an evaluation fills. A line may
stand here twice, after a crash.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dystop.errors import RunFolderError
from dystop.folders.folder_kinds import writing
from dystop.foreign_files import LOG_BYTES, read_bounded
from dystop.record import SCORE, RoundRecord
from dystop.storage import AppendLog
from dystop.strict_json import parse_json

LATE_SCORES = "late_scores.jsonl"
LateScores = Mapping[int, Mapping[str, Any]]
"""The fields of a score, by round."""


def parse_late_score(line: bytes) -> tuple[int, dict[str, Any]]:
    """Return round and score of one line; raise ValueError if the line is not a late score.

    >>> parse_late_score(b'{"round":20,"accuracy":0.5}')
    (20, {'accuracy': 0.5})
    """
    raw: Any = parse_json(line)
    if not isinstance(raw, dict) or type(raw.get("round")) is not int or "accuracy" not in raw:
        raise ValueError("not a late score")
    return raw["round"], {name: raw[name] for name in SCORE if name in raw}


def read_late_scores(folder: Path) -> LateScores:
    """Return all late scores of a run; an incomplete last line is left out.

    Raises:
        RunFolderError: The file cannot be read, or another line is not a late score.
    """
    path = folder / LATE_SCORES
    try:
        lines = read_bounded(path, LOG_BYTES).split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return dict(map(parse_late_score, lines))
    except (ValueError, RecursionError):
        raise RunFolderError(
            f"{path}: a line is damaged; delete it, and the scores of the other lines are kept"
        ) from None


def with_late_score(record: RoundRecord, scores: LateScores) -> RoundRecord:
    """Return the record with its late score, if it has no score but one came later."""
    score = scores.get(record.round)
    if score is None or record.no_score is None or record.accuracy is not None:
        return record
    return replace(record, no_score=None, added={**record.added, **score})


def with_late_scores(records: Iterable[RoundRecord], scores: LateScores) -> list[RoundRecord]:
    """Return the records, each with its late score where there is one."""
    return [with_late_score(record, scores) for record in records]


class LateScoreLog:
    """`late_scores.jsonl`, open for appending; the file appears with its first line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: AppendLog | None = None

    def append(self, record: RoundRecord) -> None:
        """Write the score of a record as one line; if it does not fit, none of it is kept."""
        score = {name: record.get(name) for name in SCORE}
        known = {name: value for name, value in score.items() if value is not None}
        line = json.dumps({"round": record.round, **known}, separators=(",", ":"), allow_nan=False)
        with writing(self._folder):
            if self._log is None:
                self._log = self._open()
            self._log.append(line.encode() + b"\n")

    def _open(self) -> AppendLog:
        """Open the file; a last line that a crash cut off is removed."""
        path = self._folder / LATE_SCORES
        old = read_bounded(path, LOG_BYTES) if path.exists() else b""
        return AppendLog(path, old.rfind(b"\n") + 1)

    def sync(self) -> None:
        """Wait until every line is on the disk."""
        if self._log is not None:
            with writing(self._folder):
                self._log.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._log is not None:
            self._log.close()
