"""Which messages of a member can be true, checked before the coordinator changes anything.

The codec bounds the form of a message. Here its content is held against what was ordered: a number
of a training, a round or a version cannot be far ahead of the rounds that were opened; mail comes
from other workers, once from each; a report names only pulls of its order, and no seconds beyond
those that have passed since the order was issued. An honest member may be
ahead of a coordinator whose ledger was restored from a backup, so a lead of `MAX_LEAD` is allowed.
What is ahead of the coordinator's own round is then left out of its plans (`Observations`).
"""

import math
from collections.abc import Iterable

from dystop.testbed.coordinator.observations import pulls_by_stage_and_sender
from dystop.testbed.protocol.messages import (
    MAX_LEAD,
    MAX_REAL,
    MAX_VERSION,
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    Rejected,
    Report,
    Scored,
    ToCoordinator,
    Used,
)
from dystop.types import Fleet

MAX_RESENT = 1000  # models that one pull may cost on the wire
SMALL_BYTES = 4096  # of a message without lists
LABEL_BYTES, MAIL_BYTES, PULL_BYTES, NODE_BYTES = 24, 96, 400, 8  # of one entry as JSON
NUMBER_BYTES = 26  # of a number with all its digits
HEADERS_BYTES = 2**20  # what headers may add to that
CLOCKS_FACTOR, CLOCKS_S = 1.1, 1.0  # by which the clocks of two machines may disagree
LOSS_MARGIN = 1e-3  # by which rounding may take a loss below the least one


def most_bytes(kind: str, fleet: Fleet, most_pulls: int) -> int:
    """Return the largest size of a message of this kind, by its name on the wire.

    Args:
        kind: Such as "join".
        fleet: The fleet of the run.
        most_pulls: Pulls of the largest order so far.
    """
    classes = int(fleet.label_counts.shape[1])
    extra = {
        "join": LABEL_BYTES * classes + MAIL_BYTES * fleet.nodes,
        "report": PULL_BYTES * max(most_pulls, fleet.nodes) + 3 * SMALL_BYTES,
        "scored": (NODE_BYTES + 2 * NUMBER_BYTES) * fleet.nodes,
    }
    return SMALL_BYTES + extra.get(kind, 0)


def implausible(
    fleet: Fleet,
    t: int,
    node: int,
    message: ToCoordinator,
    order: Execute | None,
    passed_s: float | None = None,
    least_loss: float = -math.inf,
) -> str:
    """Return what cannot be true in a message; empty: nothing.

    Args:
        fleet: The fleet of the run.
        t: The round that is open or opens next.
        node: The sender.
        message: The message.
        order: The order that a report answers; None: such a report has no effect.
        passed_s: Seconds since this order was issued; None: nobody knows.
        least_loss: The least loss of the task.
    """
    if isinstance(message, Join):
        return _in_join(fleet, t + MAX_LEAD, node, message)
    if isinstance(message, Report):
        wrong = _in_report(fleet, t, message, order) or _in_loss(message.loss, least_loss)
        return wrong or ("" if order is None else _in_seconds(message, passed_s))
    if isinstance(message, Scored):
        return _in_score(fleet, t + MAX_LEAD, message)
    if isinstance(message, Heartbeat) and message.last_round > t + MAX_LEAD:
        return f"last_round {message.last_round}, the run is in round {t}"
    if isinstance(message, ExecuteAck) and message.round > t + MAX_LEAD:
        return f"round {message.round}, the run is in round {t}"
    return ""


def _in_join(fleet: Fleet, most: int, node: int, join: Join) -> str:
    for name, value in (("number", join.number), ("last_round", join.last_round)):
        if value > most:
            return f"{name} {value}, at most {most} is possible"
    if join.version > MAX_VERSION:
        return f"version {join.version}, at most {MAX_VERSION} is possible"
    senders = [mail.node for mail in join.mail]
    if node in senders or max(senders, default=-1) >= fleet.nodes:
        return f"mail from nodes {senders[:8]}, allowed are other nodes below {fleet.nodes}"
    if len(set(senders)) < len(senders):
        return "two messages of one sender in the mailbox"
    late = [mail for mail in join.mail if mail.number > most or mail.round > most]
    return f"mail {late[0]}, at most {most} is possible" if late else ""


def _in_report(fleet: Fleet, t: int, report: Report, order: Execute | None) -> str:
    entries: tuple[Used | Rejected, ...] = (*report.used, *report.rejected)
    named = [(entry.stage, entry.node) for entry in entries]
    if len(set(named)) < len(named):
        return "a pull is named twice"
    if order is not None:
        strange = set(named) - pulls_by_stage_and_sender(order).keys()
        if strange:
            return f"(stage, node) {min(strange)}, which the order of the round does not name"
    most = t + MAX_LEAD
    if max(report.round, report.number) > most or report.version > MAX_VERSION:
        return f"round {report.round}, number {report.number} or version {report.version}"
    if report.loss is not None and abs(report.loss) > MAX_REAL:
        return f"loss {report.loss}"
    return _in_transfers(fleet, most, report)


def _in_loss(loss: float | None, least: float) -> str:
    """Check the loss of a report; the least loss of a task is a number, or minus infinity."""
    if loss is None or loss >= least - LOSS_MARGIN * max(1.0, abs(least)):
        return ""
    return f"loss {loss}, at least {least:g} is possible"


def _in_seconds(report: Report, passed_s: float | None) -> str:
    """Check that nothing in the report of an exchange lasted longer than since its order."""
    if passed_s is None or report.kind != "mixed":
        return ""
    most_s = CLOCKS_FACTOR * passed_s + CLOCKS_S
    entries: tuple[Report | Used | Rejected, ...] = (report, *report.used, *report.rejected)
    longest_s = max(report.waited_s, *(entry.seconds for entry in entries))
    if longest_s <= most_s:
        return ""
    return f"{longest_s:g} seconds, its order was issued {passed_s:.3g} seconds before"


def _in_transfers(fleet: Fleet, most: int, report: Report) -> str:
    """Check what a report says about single transfers."""
    most_bytes = MAX_RESENT * fleet.model_bytes + HEADERS_BYTES
    entries: tuple[Used | Rejected, ...] = (*report.used, *report.rejected)
    for entry in entries:
        if entry.bytes > most_bytes:
            return f"{entry.bytes} bytes from node {entry.node}, at most {most_bytes} are possible"
    return next(filter(None, (_in_model(most, used) for used in report.used)), "")


def _in_model(most: int, used: Used) -> str:
    if used.number > most or used.version > MAX_VERSION:
        return f"version {used.version} and number {used.number} of node {used.node}"
    if used.distance is not None and used.distance > MAX_REAL:
        return f"distance {used.distance} to node {used.node}"
    return ""


def _in_score(fleet: Fleet, most: int, score: Scored) -> str:
    scores = (score.accuracy, score.accuracy_global)  # that of a regression may be negative
    if score.round > most or not all(-MAX_REAL <= each <= 1.0 for each in scores):
        return f"round {score.round} or scores {scores}"
    if not 0.0 <= score.accuracy_std <= MAX_REAL:
        return f"a deviation of the scores of {score.accuracy_std}"
    losses = (score.loss or 0.0, score.loss_global or 0.0)
    if max(map(abs, losses)) > MAX_REAL or score.diverged > fleet.nodes:
        return f"losses {losses} or {score.diverged} diverged models"
    return _in_worker_scores(fleet, score) or _bad_nodes(score.missing, fleet.nodes)


def _in_worker_scores(fleet: Fleet, score: Scored) -> str:
    """Check the results of single workers: those of all, or none."""
    lengths = {len(score.worker_accuracy), len(score.worker_loss)}
    if len(lengths) > 1 or lengths - {0, fleet.workers}:
        return f"results of {sorted(lengths)} workers, expected those of {fleet.workers}"
    if not all(one is None or -MAX_REAL <= one <= 1.0 for one in score.worker_accuracy):
        return "the score of a worker is above 1 or too small"
    if not all(loss is None or abs(loss) <= MAX_REAL for loss in score.worker_loss):
        return "the loss of a worker is too large"
    return ""


def _bad_nodes(nodes: Iterable[int], most: int) -> str:
    """Refuse nodes that do not exist or are named twice."""
    listed = list(nodes)
    if len(set(listed)) < len(listed) or max(listed, default=-1) >= most:
        return f"nodes {listed[:8]}, allowed are distinct ones below {most}"
    return ""
