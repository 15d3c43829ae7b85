"""The observer's check of a model that a worker refused.

The observer pulls the same publication from its sender and applies the same guard as a worker. It
has no model of its own. In its place it takes the model with the median norm among some other
members, so that a few bad ones cannot move the limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dystop.control import robust_aggregation
from dystop.control.aggregation import kept_coordinates
from dystop.testbed.coordinator.conduct.misbehaviour import STRIKE_CODES
from dystop.testbed.events import PullFailed, PullFinished, Vector
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import MAX_NODES, Judge, Judged, Peer, RejectCode
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.worker.guard import Guard, ModelClaim

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
        answer = partial(Judged, question.node, question.version)
        if question.node not in peers:
            return answer("not_testable", "unreachable")
        holds = None if self.schema.compression is None else ""  # a whole public copy
        event = self.pull(peers[question.node], replace(_request(question, run), holds=holds))
        header = event.header if isinstance(event, PullFinished) else event.announced
        digest = header.content if header else ""
        if header and question.version not in (0, header.version):
            return answer("not_testable", "no_model", digest)
        if isinstance(event, PullFailed):
            is_bad = event.code in STRIKE_CODES
            return answer("refused" if is_bad else "not_testable", event.code, digest)
        no_limit = np.zeros(self.schema.width, np.float32)  # the norm is not limited by it
        code = self._defect(question, event, no_limit)
        if code is None:
            reference = self._reference(question, run, peers)
            if reference is None:
                return answer("not_testable", "norm", digest)
            code = self._defect(question, event, reference)
        return answer("accepted" if code is None else "refused", code, digest)

    def _defect(self, question: Judge, event: PullFinished, own: Vector) -> RejectCode | None:
        """Return why a worker with this model of its own would refuse the pulled one."""
        header, vector = event.header, event.vector
        claim = ModelClaim(question.node, question.round, header.version, header.number)
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
        models = [m for m in models if np.isfinite(robust_aggregation.norm(m))]
        if len(models) < MIN_REFERENCES:
            return None
        return sorted(models, key=robust_aggregation.norm)[len(models) // 2]


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
