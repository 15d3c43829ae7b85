"""The observer's check of a model that a worker refused.

The observer pulls the same publication from its sender and applies the same guard as a worker. It
has no model of its own. In its place it takes the model with the median norm among some other
members, so that a few bad ones cannot move the limit.

A sender may number every answer anew, so that no accused version can be pulled again. If it does
not serve the accused version, the observer pulls its newest model, and then the same version of
this model once more. An honest sender serves a model again for `SERVED_S` seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dystop.control.aggregation import kept_coordinates
from dystop.exchange.rules import norm
from dystop.testbed.coordinator.conduct.misbehaviour import STRIKE_CODES
from dystop.testbed.events import PullFailed, PullFinished, Vector
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import MAX_NODES, Judge, Judged, Peer, RejectCode
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.protocol.pulls import SERVED_S, ModelHeader, PullRequest
from dystop.testbed.worker.guard import Guard, claim_of

MAX_REFERENCES, MIN_REFERENCES = 5, 2  # models of others for the median norm
PullModel = Callable[[Peer, PullRequest], PullFinished | PullFailed]


@dataclass(frozen=True)
class ModelCheck:
    """Checks one model after another."""

    schema: Schema
    guards: Guards
    pull: PullModel

    def judge(self, question: Judge, run: str, peers: Mapping[int, Peer]) -> Judged:
        """Pull the model and check it; blocks until both are done."""
        if question.node not in peers:
            return Judged(question.node, question.version, "not_testable", "unreachable")
        peer, request = peers[question.node], self._form(_request(question, run))
        event = self.pull(peer, request)
        if question.version and not _has_version(event, question.version):
            return self._judge_newest(question, run, peers)
        return self._verdict(question, run, peers, event)

    def _judge_newest(self, question: Judge, run: str, peers: Mapping[int, Peer]) -> Judged:
        """Judge a sender that does not serve the accused version by what it serves now.

        It is refused for a bad model, and for one that it cannot serve a second time.
        """
        peer, newest = peers[question.node], self._form(PullRequest(run, question.round + 1))
        event = self.pull(peer, newest)
        plain = replace(question, stage=0, exact=False, delta=False, mask=None)
        found = self._verdict(plain, run, peers, event)
        if found.outcome == "refused":
            return found
        if found.outcome == "accepted" and isinstance(event, PullFinished):
            again = self.pull(peer, replace(newest, version=event.header.version))
            was_quick = event.seconds < SERVED_S / 2
            # A public copy follows the pulls of others: it may have moved on.
            if self.schema.codec is None and was_quick and _is_missing(again, event.header):
                return replace(found, outcome="refused", code="no_model")
        return replace(found, outcome="not_testable", code="no_model")

    def _form(self, request: PullRequest) -> PullRequest:
        """Return a request for whole public copies, if the run has any."""
        return replace(request, holds=None if self.schema.codec is None else "")

    def _verdict(
        self,
        question: Judge,
        run: str,
        peers: Mapping[int, Peer],
        event: PullFinished | PullFailed,
    ) -> Judged:
        """Judge what a pull brought."""
        header = event.header if isinstance(event, PullFinished) else event.announced
        answer = partial(
            Judged, question.node, question.version, digest=header.content if header else ""
        )
        if isinstance(event, PullFailed):
            is_bad = event.code in STRIKE_CODES
            return answer("refused" if is_bad else "not_testable", event.code)
        no_limit = np.zeros(self.schema.width, np.float32)  # the norm is not limited by it
        code = self._defect(question, event, no_limit)
        if code is None:
            reference = self._reference(question, run, peers)
            if reference is None:
                return answer("not_testable", "norm")
            code = self._defect(question, event, reference)
        return answer("accepted" if code is None else "refused", code)

    def _defect(self, question: Judge, event: PullFinished, own: Vector) -> RejectCode | None:
        """Return why a worker with this model of its own would refuse the pulled one."""
        vector = event.vector
        claim = claim_of(question.node, question.round, event.header)
        is_masked = question.mask is not None and len(vector) != len(own)
        kept = kept_coordinates(*question.mask, len(own)) if is_masked and question.mask else None
        kind = "delta" if question.delta else "model"
        return Guard(self.guards, self.schema.variances).judge(claim, vector, own, kind, kept).code

    def _reference(self, question: Judge, run: str, peers: Mapping[int, Peer]) -> Vector | None:
        """Return the model with the median norm among some others; None: too few can be pulled."""
        others = [p for p in peers.values() if p.address and p.node != question.node]
        others.sort(key=lambda peer: (peer.node - question.node) % (MAX_NODES + 1))
        newest, models = PullRequest(run, question.round + 1), list[Vector]()
        for peer in others[:MAX_REFERENCES]:
            event = self.pull(peer, newest)
            if isinstance(event, PullFinished):
                models.append(event.vector)
        models = [m for m in models if np.isfinite(norm(m))]
        if len(models) < MIN_REFERENCES:
            return None
        return sorted(models, key=norm)[len(models) // 2]


def _has_version(event: PullFinished | PullFailed, version: int) -> bool:
    """Return whether a pull brought this version, or failed for another reason than its absence."""
    header = event.header if isinstance(event, PullFinished) else event.announced
    if header is not None:
        return header.version == version
    return isinstance(event, PullFailed) and event.code != "no_model"


def _is_missing(event: PullFinished | PullFailed, header: ModelHeader) -> bool:
    """Return whether a sender answered, but not with the model that it had announced."""
    if isinstance(event, PullFailed):
        return event.code == "no_model"
    return (event.header.version, event.header.content) != (header.version, header.content)


def _request(question: Judge, run: str) -> PullRequest:
    return PullRequest(
        run=run,
        round=question.round,
        stage=question.stage,
        exact=question.exact,
        delta=question.delta,
        mask=question.mask,
        version=question.version,
    )
