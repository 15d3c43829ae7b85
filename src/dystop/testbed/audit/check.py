"""The offline checker: reads the files of a run and reports violated invariants.

I1   rounds 1..T are closed exactly once, without a gap
I2   each node with an order in a round has exactly one outcome: DONE, FAILED, LATE or CANCELLED
I3   each node applied each round at most once, and applied = DONE or LATE
I4   every model that was used had been published by that peer, and was not rejected
I5   staleness, queues and pull counts follow from the history by the paper's equations
I6   versions rise, and a version has one content
I7   after an epoch was seen, no order of a lower one was accepted
I8   no process exceeded its limits on memory, descriptors and threads
I9   no secret is in a log
I10  accuracy within a stated distance of a run without faults

`check_facts` works on facts in memory (`audit.facts`), `check_run` on the folder of a run.
`worker.history` describes the lines of an event log.
"""

import errno
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import pairwise
from pathlib import Path

import numpy as np

from dystop.foreign_files import open_regular
from dystop.testbed.audit.facts import Closed, LateReport, RunFacts, StateFacts, read_facts
from dystop.testbed.worker.history import HISTORY_FILE, LogLine

MAX_DESCRIPTORS = 256
MAX_THREADS = 64
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_FILES = (".key", ".pem")  # a key belongs into a key file
_CHUNK_BYTES = 2**20
_OVERLAP_BYTES = 4096
_APPLIED = ("DONE", "LATE")
_OUTCOMES = (*_APPLIED, "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Finding:
    """A violated invariant: which one, and what was seen."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check_run(folder: Path, canaries: Sequence[str] = ()) -> list[Finding]:
    """Check I1 to I9 on the folder of a run; an event log that is missing is a finding, too.

    Args:
        folder: Holds `state.db` of the coordinator and the nodes' folders, at any depth.
        canaries: Secrets that must not occur in any file.

    Raises:
        RunFolderError: There is no run in the folder, or it is still running.
    """
    audit = audit_run(folder, canaries)
    return [*audit.findings, *audit.missing]


@dataclass(frozen=True)
class Audit:
    """What the files of a run show."""

    findings: list[Finding]  # violated invariants
    notices: list[str]  # incidents of members: nothing is violated, but the operator should know
    missing: list[Finding]  # event logs without which some invariants cannot be checked


def audit_run(folder: Path, canaries: Sequence[str] = ()) -> Audit:
    """Check I1 to I9 on the folder of a run, and name the members that had incidents."""
    leaked = [Finding("I9", f"{path}: {what}") for path, what in leaks(folder, canaries)]
    facts = read_facts(folder)
    notices = [str(entry) for entry in facts.incidents]
    return Audit([*check_facts(facts), *leaked], notices, missing_logs(facts))


def leaks(folder: Path, canaries: Sequence[str] = ()) -> Iterator[tuple[Path, str]]:
    """I9: yield files that hold a private key or one of the given secrets, with what was found.

    Key files are left out. The finding is named by its kind, never by its value.

    >>> list(leaks(Path("/nowhere")))
    []
    """
    wanted = [("a given secret", re.compile(re.escape(c.encode()))) for c in canaries if c]
    wanted.append(("a private key", PRIVATE_KEY))
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.suffix in _KEY_FILES:
            continue
        yield from ((path, what) for what, pattern in wanted if _holds(path, pattern))


def _holds(path: Path, pattern: re.Pattern[bytes]) -> bool:
    """Return whether a file holds a pattern; reads in pieces, because checkpoints are large."""
    tail = b""
    with open_regular(path) as file:
        while _skip_hole(file) and (piece := file.read(_CHUNK_BYTES)):
            if pattern.search(tail + piece):
                return True
            tail = piece[-_OVERLAP_BYTES:]
    return False


def _skip_hole(file: BufferedReader) -> bool:
    """Go on to the next data of a file that may be sparse; return whether there is any."""
    try:
        file.seek(os.lseek(file.fileno(), file.tell(), os.SEEK_DATA))
    except OSError as error:
        return error.errno != errno.ENXIO  # a file system without holes
    return True


def check_facts(facts: RunFacts) -> list[Finding]:
    """Check I1 to I8 on facts in memory.

    >>> check_facts(RunFacts(2, None, [], [], [], {}))
    []
    """
    rules: Sequence[Callable[[RunFacts], Iterable[Finding]]] = (
        rounds_closed_once,
        one_outcome_each,
        applied_once,
        used_were_published,
        state_follows,
        versions_rise,
        epochs_obeyed,
        resources_bounded,
    )
    return [finding for rule in rules for finding in rule(facts)]


def missing_logs(facts: RunFacts) -> list[Finding]:
    """Return the nodes that took part and whose event log is not there.

    >>> missing_logs(RunFacts(2, None, [], [(1, 0, "DONE")], [], {}, names={0: "w00"}))[0].text
    'workers/w00/history.jsonl is missing'
    """
    names = {node: facts.names.get(node, f"node {node}") for node in _without_log(facts)}
    return [
        Finding("event log", f"workers/{name}/{HISTORY_FILE} is missing")
        for _, name in sorted(names.items())
    ]


def _without_log(facts: RunFacts) -> set[int]:
    """Return the nodes that confirmed a round, or whose model was used, and left no event log."""
    confirmed = {node for _, node, outcome in facts.outcomes if outcome in _APPLIED}
    used = {
        line["node"]
        for lines in facts.event_logs.values()
        for line in lines
        if line["kind"] == "used" and 0 <= line["node"] < facts.workers
    }
    return (confirmed | used) - set(facts.event_logs)


def rounds_closed_once(facts: RunFacts) -> Iterator[Finding]:
    """I1: rounds 1..T planned once and closed once, in order; the last may still be open."""
    closed = [s.round for s in facts.steps if isinstance(s, Closed)]
    if closed != list(range(1, len(closed) + 1)):
        yield Finding("I1", f"rounds were closed in the order {_short(closed)}")
    planned = [p.round for p in facts.planned]
    if planned != list(range(1, len(planned) + 1)):
        yield Finding("I1", f"rounds were planned in the order {_short(planned)}")
    left = set(planned) - set(closed) - facts.unfinished
    if left or set(closed) - set(planned):
        yield Finding("I1", f"planned but not closed, or the reverse: {_short(sorted(left))}")


def one_outcome_each(facts: RunFacts) -> Iterator[Finding]:
    """I2: each (round, node) with an order has one outcome; all others have none."""
    outcomes: dict[tuple[int, int], list[str]] = defaultdict(list)
    for round_, node, outcome in facts.outcomes:
        outcomes[round_, node].append(outcome)
        if outcome not in _OUTCOMES:
            yield Finding("I2", f"round {round_}, node {node} ended as {outcome!r}")
    for plan in facts.planned:
        for node in sorted(plan.ordered):
            found = outcomes.pop((plan.round, node), [])
            if len(found) > 1 or (not found and plan.round not in facts.unfinished):
                yield Finding("I2", f"round {plan.round}, node {node} has the outcomes {found}")
    for (round_, node), found in sorted(outcomes.items()):
        yield Finding("I2", f"round {round_}, node {node} had no order, but the outcome {found}")


def applied_once(facts: RunFacts) -> Iterator[Finding]:
    """I3: applied at most once, and applied = DONE or LATE.

    The only exception: a report that was not yet acknowledged when the run ended
    (`facts.unacknowledged`).
    """
    confirmed: dict[int, set[int]] = defaultdict(set)
    for round_, node, outcome in facts.outcomes:
        if outcome in _APPLIED:
            confirmed[node].add(round_)
    for node, lines in sorted(facts.event_logs.items()):
        applied = {line["round"] for line in lines if line["kind"] == "applied"}
        if missing := confirmed[node] - applied:
            yield Finding("I3", f"node {node} never applied {_short(sorted(missing))}")
        open_end = facts.unacknowledged.get(node, frozenset()) | facts.unfinished
        if extra := applied - confirmed[node] - open_end:
            yield Finding("I3", f"node {node} applied {_short(sorted(extra))} unconfirmed")
        yield from _trainings(node, lines)


def _trainings(node: int, lines: Sequence[LogLine]) -> Iterator[Finding]:
    """A training number has one start, however often it is repeated, and one round."""
    starts: dict[int, set[str]] = defaultdict(set)
    rounds: dict[int, set[int]] = defaultdict(set)
    for line in lines:
        if line["kind"] == "training":
            starts[line["number"]].add(line["start"])
        elif line["kind"] == "trained":
            rounds[line["round"]].add(line["number"])
    for number, begun in sorted(starts.items()):
        if len(begun) > 1:
            yield Finding("I3", f"node {node} began training {number} from {len(begun)} models")
    for round_, numbers in sorted(rounds.items()):
        if len(numbers) > 1:
            yield Finding("I3", f"node {node} trained {sorted(numbers)} in round {round_}")


def used_were_published(facts: RunFacts) -> Iterator[Finding]:
    """I4: each used (peer, version, digest) is in that peer's event log and was not rejected."""
    published = {
        (node, line["version"], line["digest"])
        for node, lines in facts.event_logs.items()
        for line in lines
        if line["kind"] == "published"
    }
    unknown = _without_log(facts)
    for node, lines in sorted(facts.event_logs.items()):
        used = [line for line in lines if line["kind"] == "used"]
        rejected = {_pull_key(line) for line in lines if line["kind"] == "rejected"}
        for line in used:
            what = f"node {node}, round {line['round']}: version {line['version']} of node "
            version = line["node"], line["version"], line["digest"]
            if line["node"] not in unknown and version not in published:
                yield Finding("I4", f"{what}{line['node']} was used but never published")
            if _pull_key(line) in rejected:
                yield Finding("I4", f"{what}{line['node']} was used and rejected")


def _pull_key(line: LogLine) -> tuple[int, int, int]:
    return line["round"], line["stage"], line["node"]


def state_follows(facts: RunFacts) -> Iterator[Finding]:
    """I5: eq:staleness, eq:queue and the pull counts, step by step from zero."""
    active = {plan.round: plan.active for plan in facts.planned}
    state = StateFacts((0,) * facts.workers, (0.0,) * facts.workers, {})
    for step in facts.steps:
        trained = active.get(step.round, frozenset())
        if isinstance(step, Closed):
            state = _after_round(facts, state, step, trained)
        else:
            state = _after_late(state, step, trained)
        if step.state is not None:
            yield from _compare(facts, step, state)
            state = step.state  # one finding per error, not one for every later round


def _after_round(
    facts: RunFacts, state: StateFacts, step: Closed, active: frozenset[int]
) -> StateFacts:
    """Set tau <- 0 for a confirmed activation, else tau + 1; q <- max(q + tau - bound, 0)."""
    staleness, queue = list(state.staleness), list(state.queue)
    for i, tau in enumerate(state.staleness):
        present = i in step.present
        if facts.bound is not None and present:
            queue[i] = max(state.queue[i] + tau - facts.bound, 0.0)
        if i in active and i in step.done:
            staleness[i] = 0
        elif present or not facts.freeze:
            staleness[i] = tau + 1
    return StateFacts(tuple(staleness), tuple(queue), _count(state, step.pulled))


def _after_late(state: StateFacts, step: LateReport, active: frozenset[int]) -> StateFacts:
    """A late report resets the staleness of a worker that was active, and adds its pulls."""
    staleness = list(state.staleness)
    if step.node in active:
        staleness[step.node] = 0
    return replace(state, staleness=tuple(staleness), pulls=_count(state, step.pulled))


def _count(state: StateFacts, pulled: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    return dict(Counter(state.pulls) + Counter(pulled))


def _compare(facts: RunFacts, step: Closed | LateReport, ours: StateFacts) -> Iterator[Finding]:
    stored, when = step.state, f"after round {step.round}"
    if stored is None:
        return
    if stored.staleness != ours.staleness:
        yield Finding("I5", f"{when}: staleness {stored.staleness}, not {ours.staleness}")
    if facts.queues and not np.allclose(stored.queue, ours.queue, rtol=1e-9, atol=1e-9):
        yield Finding("I5", f"{when}: queues {stored.queue}, not {ours.queue}")
    if dict(stored.pulls) != dict(ours.pulls):
        odd = set(stored.pulls.items()) ^ set(ours.pulls.items())
        yield Finding("I5", f"{when}: pull counts differ at {sorted(odd)[:3]}")


def versions_rise(facts: RunFacts) -> Iterator[Finding]:
    """I6: each version has one content, and newer versions come from no older training."""
    for node, lines in sorted(facts.event_logs.items()):
        content: dict[tuple[int, str], str] = {}
        number: dict[int, int] = {}
        for line in lines:
            if line["kind"] != "published" or line["stage"] > 0:
                continue
            version, key = line["version"], (line["version"], line["form"])
            if content.setdefault(key, line["digest"]) != line["digest"]:
                yield Finding("I6", f"node {node}: version {version} has two contents")
            number[version] = line["number"]
        falls = [v for v, w in pairwise(sorted(number)) if number[v] > number[w]]
        if falls:
            yield Finding("I6", f"node {node}: a version after {falls[0]} is of an older training")
        yield from _trained_rise(node, lines)


def _trained_rise(node: int, lines: Sequence[LogLine]) -> Iterator[Finding]:
    """Versions of finished trainings rise with their numbers; a failed one publishes nothing."""
    seen: dict[int, int] = {}
    for line in lines:
        if line["kind"] == "trained" and not line.get("text"):
            seen[line["number"]] = line["version"]
    versions = [seen[number] for number in sorted(seen)]
    if any(b <= a for a, b in pairwise(versions)):
        yield Finding("I6", f"node {node}: versions of its trainings are {_short(versions)}")


def epochs_obeyed(facts: RunFacts) -> Iterator[Finding]:
    """I7: no order of a lower epoch is accepted after a higher one was seen."""
    for node, lines in sorted(facts.event_logs.items()):
        highest = -1
        for line in lines:
            taken = line["kind"] == "order" and line["state"] in ("accepted", "queued")
            if taken and line["epoch"] < highest:
                text = f"node {node} took up round {line['round']} of epoch {line['epoch']}"
                yield Finding("I7", f"{text} after epoch {highest}")
            if line["kind"] in ("start", "epoch", "order"):
                highest = max(highest, line["epoch"])


def resources_bounded(facts: RunFacts, max_rss_bytes: int | None = None) -> Iterator[Finding]:
    """I8: memory, descriptors and threads of every sample in the event logs."""
    bounds = {
        "descriptors": MAX_DESCRIPTORS,
        "threads": MAX_THREADS,
        "rss_bytes": max_rss_bytes,
    }
    for node, lines in sorted(facts.event_logs.items()):
        samples = [line for line in lines if line["kind"] == "sample"]
        for what, bound in bounds.items():
            most = max((line.get(what, 0) for line in samples), default=0)
            if bound is not None and most > bound:
                yield Finding("I8", f"node {node} reached {most} {what}, allowed are {bound}")


def accuracy_near(ours: float, control: float, distance: float) -> list[Finding]:
    """I10: at most `distance` below the control run, both as shares of 1."""
    if ours >= control - distance:
        return []
    return [Finding("I10", f"accuracy {ours:.4f}, more than {distance} below {control:.4f}")]


def _short(values: Sequence[int]) -> str:
    return str(list(values)) if len(values) <= 20 else f"{list(values[:20])} ..."
