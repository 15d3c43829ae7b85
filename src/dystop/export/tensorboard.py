"""TensorBoard: one event file per run, with curves over rounds.

The step is the round, and the time of an event is the run's clock: TensorBoard's "relative" axis
shows simulated seconds. The file has the same bytes whenever a run is exported.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dystop.export.rows import RoundRows
from dystop.export.sources import RunLabel
from dystop.export.writer import Curves, needed
from dystop.foreign_files import folder_within
from dystop.storage import AppendLog, write_atomic

EVENTS = "events.out.tfevents.0000000000.dystop"
_VERSION = "brain.Event:2"  # the format of the file


class EventFiles:
    """Writes an event file for each run into a folder of its name.

    Args:
        out: Folder of the runs, for `tensorboard --logdir`.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._encode = _Encoder()
        self._new: dict[str, list[bytes]] = {}  # events that are not in the file yet
        self._curves = Curves()
        self._logs: dict[str, AppendLog] = {}

    def add(self, label: RunLabel, rows: Sequence[RoundRows]) -> None:
        """Add events of new rounds; of a round that comes again, what is new in it."""
        events = self._new.setdefault(label.run, [])
        for row in rows:
            if points := self._curves.new(label.run, row):
                events.append(self._encode.round(row, points))

    def flush(self) -> None:
        """Write the first events of a run as a whole file, and append all later ones."""
        for run, events in self._new.items():
            data = b"".join(events)
            if run not in self._logs:
                data = self._encode.start() + data
                with folder_within(self._out, run, create=True) as folder:
                    write_atomic(folder / EVENTS, data)
                    self._logs[run] = AppendLog(folder / EVENTS, len(data))
            elif data:
                self._logs[run].append(data)
            events.clear()

    def close(self) -> list[Path]:
        """Close all files and return them."""
        for log in self._logs.values():
            log.close()
        return [self._out / run / EVENTS for run in self._logs]


class _Encoder:
    """Encodes events as TensorBoard's own package does."""

    def __init__(self) -> None:
        writer = needed("tensorboard.summary.writer.record_writer", "tensorboard")
        self._write_record = writer.RecordWriter
        self._events = needed("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summaries = needed("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._histograms = needed("tensorboard.plugins.histogram.summary_v2", "tensorboard")

    def start(self) -> bytes:
        """Return the first event of a file."""
        return self._bytes(self._events.Event(wall_time=0.0, file_version=_VERSION))

    def round(self, rows: RoundRows, points: Mapping[str, float]) -> bytes:
        """Return the event of a round: points, and with an evaluation the workers' results."""
        value = self._summaries.Summary.Value
        values = [value(tag=tag, simple_value=y) for tag, y in points.items()]
        if any(tag.startswith("tests/") for tag in points):
            workers = list(rows.of("workers"))
            for name in ("accuracy", "loss"):
                if known := [row[name] for row in workers if row[name] is not None]:
                    values += self._histograms.histogram_pb(f"workers/{name}", known).value
        summary = self._summaries.Summary(value=values)
        return self._bytes(
            self._events.Event(wall_time=rows.clock_s, step=rows.round, summary=summary)
        )

    def _bytes(self, event: Any) -> bytes:
        out = io.BytesIO()
        self._write_record(out).write(event.SerializeToString())
        return out.getvalue()
