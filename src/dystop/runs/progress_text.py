"""Sentences about the progress of a run, for terminals, notebooks and reports."""

from dystop.record import ACCURACY, RoundRecord
from dystop.units import plural


def slowdown_text(slowdown: float) -> str:
    """Say that a machine is too slow to emulate its devices, and what to do."""
    return (
        f"trainings take {slowdown:.1f} times as long as on the emulated devices, because this "
        "machine is too slow for testbed.time_scale; a time scale that is "
        f"{slowdown:.1f} times as large, fewer workers or a faster machine would emulate them"
    )


def status_line(record: RoundRecord, scored: RoundRecord | None) -> str:
    """Return clock, loss and the last accuracy as one short line."""
    parts = [f"clock {record.clock_s:,.1f} s"]
    if record.loss is not None:
        parts.append(f"loss {record.loss:.3f}" if record.loss < 1e4 else f"loss {record.loss:.3g}")
    if scored is not None and scored.accuracy is not None:
        tested = scored.get("tested")
        is_partial = tested is not None and tested < scored.alive
        of = f" of {plural(tested, 'model')}" if is_partial else ""
        name = scored.get("score_name") or ACCURACY
        shown = f"{scored.accuracy:.1%}" if name == ACCURACY else f"{scored.accuracy:.3f}"
        parts.append(f"{name} {shown}{of}")
    return "  ".join(parts)
