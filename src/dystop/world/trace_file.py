"""Reader of `trace.jsonl` (see `dystop.world.trace`); a file may be cut off or damaged."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.errors import RunFolderError
from dystop.foreign_files import LOG_BYTES, read_bounded
from dystop.sparse import Bools, Floats, Ints, graph_of_sorted
from dystop.strict_json import parse_json
from dystop.types import Mailbox
from dystop.world.trace import (
    LINKS,
    MAIL,
    ORDERS,
    REPEATED,
    TRACE,
    TRAINED,
    Orders,
    Trace,
    TracedLinks,
    TracedRound,
    Trainings,
)

_MOST_S = 1e9  # 30 years


def read_trace(folder: Path) -> Trace:
    """Return the trace of a run; ignore a last line that was cut off.

    Raises:
        RunFolderError: Where the run has no trace, or where the trace is damaged.
    """
    path = folder / TRACE
    try:
        lines = read_bounded(path, LOG_BYTES).splitlines(keepends=True)
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder}: has no trace ({TRACE}); only runs of 'dystop testbed' have one"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    observed: dict[str, Any] = {}
    rounds: list[TracedRound] = []
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            rounds.append(_round(path, number, line, observed))
            sizes = [(len(r.alive), len(r.budget)) for r in (rounds[0], rounds[-1])]
            if sizes[0] != sizes[1]:
                raise _damaged(path, number, "it has other workers than the lines before it")
    if not rounds:
        raise RunFolderError(f"{path}: has no round; the run ended before its first round closed")
    return Trace(path, tuple(rounds))


def _damaged(path: Path, number: int, why: str) -> RunFolderError:
    return RunFolderError(
        f"{path}: line {number} is damaged ({why}); to use the rounds before it, cut the file there"
    )


def _round(path: Path, number: int, line: bytes, observed: dict[str, Any]) -> TracedRound:
    """Return the round of one line; `observed` keeps what later lines may leave out."""
    try:
        raw = parse_json(line)
    except ValueError as error:
        raise _damaged(path, number, f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise _damaged(path, number, "not an object")
    try:
        observed |= {name: _OBSERVED[name](raw[name]) for name in REPEATED if name in raw}
        out = _parsed(raw, observed)
    except KeyError as error:
        raise _damaged(path, number, f"{error.args[0]} is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise _damaged(path, number, str(error)) from None
    if problem := _problem(out, number):
        raise _damaged(path, number, problem)
    return out


def _parsed(raw: Mapping[str, Any], observed: Mapping[str, Any]) -> TracedRound:
    budget, (dst, src) = observed["budget"], observed["reach"]
    if _beyond(len(budget), dst, src) or len(dst) != len(src):  # before the graph takes memory
        raise ValueError(f"a link in reach has a node outside 0..{len(budget) - 1}, or no sender")
    return TracedRound(
        round=int(_ints([raw["round"]])[0]),
        opened_s=_number(raw["opened_s"]),
        duration_s=_number(raw["duration_s"]),
        alive=observed["alive"],
        reach=graph_of_sorted(len(budget), dst, src),
        distance_m=observed["distance_m"],
        link_s=observed["link_s"],
        step_s=observed["step_s"],
        remaining_s=_floats(raw["remaining_s"]),
        budget=budget,
        mailbox=Mailbox(*(_ints(raw["mailbox"][name]) for name in MAIL)),
        active=_ints(raw["active"]),
        links=TracedLinks(**_columns(raw["links"], LINKS)),
        orders=Orders(**_columns(raw["orders"], ORDERS)),
        trained=Trainings(**_columns(raw["trained"], TRAINED)),
    )


def _columns(raw: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return columns of equal length."""
    out = {name: _KINDS[name](raw[name]) if name in _KINDS else _ints(raw[name]) for name in names}
    if len({len(column) for column in out.values()}) > 1:
        raise ValueError(f"{', '.join(names)} differ in length")
    return out


def _ints(values: Any) -> Ints:
    return _column(values, np.int64, int)


def _bools(values: Any) -> Bools:
    return _column(values, np.bool_, bool)


def _floats(values: Any, unknown: float = math.nan) -> Floats:
    known = [unknown if v is None else v for v in values] if isinstance(values, list) else values
    return _column(known, np.float64, float, int)


def _column(values: Any, kind: Any, *types: type) -> NDArray[Any]:
    """Return a list of plain values as an array; a text is no number, a list in it is no value."""
    if not isinstance(values, list) or not {*map(type, values)} <= {*types}:
        raise TypeError("a column holds something else than it should")
    return np.array(values, kind)


def _number(value: Any) -> float:
    return float(_floats([value])[0])


_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("seconds", "waited_s", "exchange_s"), _floats),
    **dict.fromkeys(("lost", "stale", "waits", "train", "failed"), _bools),
}
_OBSERVED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("distance_m", "link_s", "step_s"), _floats),
    "alive": _bools,
    "reach": lambda pairs: (_ints(pairs["dst"]), _ints(pairs["src"])),
    "budget": lambda values: _floats(values, math.inf),
}


def _problem(line: TracedRound, number: int) -> str:
    """Return what is inconsistent in a line; empty: nothing is."""
    n, edges, nodes = len(line.alive), line.reach.edges, len(line.budget)
    if line.round != number or not line.alive.any():
        return f"it belongs to round {line.round}, or no worker was present"
    if len(line.step_s) != n or len(line.remaining_s) != n or nodes not in (n, n + 1):
        return "alive, step_s, remaining_s and budget differ in length"
    if line.reach.n != nodes or len(line.distance_m) != edges or len(line.link_s) != edges:
        return "reach, distance_m and link_s differ in length"
    if _beyond(nodes, line.links.dst, line.links.src):
        return f"a link has a node outside 0..{nodes - 1}"
    if _beyond(nodes, line.mailbox.dst, line.mailbox.src):
        return f"a message has a node outside 0..{nodes - 1}"
    if _beyond(nodes, line.orders.node) or _beyond(n, line.active, line.trained.node):
        return f"an order or a training has a node outside 0..{nodes - 1}"
    if _beyond(number + 1, line.trained.round):
        return "a training belongs to a later round"
    return "" if _has_times(line) else f"a time is not from 0 to {_MOST_S:,.0f} seconds"


def _has_times(line: TracedRound) -> bool:
    """Return whether all seconds can be times; NaN is one that is unknown."""
    columns = line.step_s, line.link_s, line.links.seconds, line.trained.seconds
    known = 0 <= line.opened_s <= _MOST_S and 0 <= line.duration_s <= _MOST_S
    return known and not any(((s < 0) | (s > _MOST_S)).any() for s in columns)


def _beyond(size: int, *ids: Ints) -> bool:
    """Return whether an id is outside 0..size - 1."""
    return any(len(x) and (x.min() < 0 or x.max() >= size) for x in ids)
