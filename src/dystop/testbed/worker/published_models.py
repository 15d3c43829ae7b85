"""The models that a worker serves: its last publications, and snapshots for exact pulls.

A pull for round t gets the newest publication from before round t. An exact pull gets the model
that the worker has just before a stage of round t, and waits until this snapshot exists. Models are
never changed after they were added, so a slow peer can finish the pull that it started.

A model that was served can be pulled again for `SERVED_S` seconds under its version. So whoever
accuses this worker can be refuted. A worker that cannot repeat what it announced is suspect
(`testbed.judgement`).
"""

from dataclasses import dataclass, field

from dystop.testbed.events import AnswerPull, Publication, PullRequested, Vector
from dystop.testbed.protocol.messages import Mask
from dystop.testbed.protocol.pulls import SERVED_S, PullRefused, PullRequest

MAX_PUBLICATIONS = 3  # the newest, and two for peers that are still pulling
MAX_SERVED = 64  # such models; only small ones follow one another so fast
MAX_MASKS = 16  # of one model and one peer
MAX_MASKED_MODELS = 8  # newest models whose masks are remembered


@dataclass(frozen=True)
class PublishedModel:
    """A publication, the start of its training, and the round that produced it."""

    publication: Publication
    since: int  # round of the order that produced it, including passive orders
    start: Vector | None = None

    def answer_to(self, request: PullRequest) -> Publication | PullRefused:
        """Return the model, or the update behind it (trained minus start) if requested."""
        if not request.delta:
            return self.publication
        if self.start is None:
            return PullRefused("no_model")
        p = self.publication
        return Publication(p.version, p.number, p.round, p.vector - self.start)


@dataclass
class PublishedModels:
    """Publications, snapshots, and peers that wait for a snapshot. Owned by one thread."""

    per_peer: int = 2  # exact pulls of one peer that may wait at once
    models: list[PublishedModel] = field(default_factory=list)  # oldest first
    round: int = 0  # of the snapshots
    last_stage: int | None = None  # this stage and all later ones have the same snapshot
    snapshots: dict[int, PublishedModel] = field(default_factory=dict)  # by stage
    waiting: dict[int, tuple[PullRequested, float]] = field(default_factory=dict)  # by key
    served: dict[int, tuple[PublishedModel, float]] = field(default_factory=dict)  # by version
    now_s: float = 0.0  # machine time, as far as it is known

    def publish(self, model: PublishedModel) -> None:
        """Serve this model from now on."""
        self.models = [*self.models, model][-MAX_PUBLICATIONS:]

    def retract_after(self, version: int) -> None:
        """Stop serving versions after this one, because they could not be saved."""
        self.models = [m for m in self.models if m.publication.version <= version]
        self.served = {v: kept for v, kept in self.served.items() if v <= version}

    def open_round(self, round_: int) -> list[AnswerPull]:
        """Start the snapshots of a round; refuse peers that wait for an earlier round."""
        self.round, self.last_stage, self.snapshots = round_, None, {}
        return self._refuse([k for k, (r, _) in self.waiting.items() if r.request.round < round_])

    def add_snapshot(
        self, stage: int, model: PublishedModel, *, last: bool = False
    ) -> list[AnswerPull]:
        """Add the model that the worker has before a stage; answer the peers that wait for it."""
        self.snapshots[stage] = model
        if last:
            self.last_stage = stage
        return self._answer_waiting()

    def close_round(self, round_: int) -> list[AnswerPull]:
        """Refuse peers that wait for this round or an earlier one: no more snapshots follow."""
        return self._refuse([k for k, (r, _) in self.waiting.items() if r.request.round <= round_])

    def answer(self, requested: PullRequested, now_s: float, *, expected: bool) -> list[AnswerPull]:
        """Answer a peer now, or let it wait for a snapshot.

        Args:
            requested: The request of the peer.
            now_s: Machine time.
            expected: Whether snapshots of that round may still be added.
        """
        self._set_time(now_s)
        request = requested.request
        model = self.find(request)
        if model is not None:
            return [self._serve(requested, model)]
        if not request.exact or names_publication(request):
            return [AnswerPull(requested.key, PullRefused("no_model"))]
        if not expected:
            return [AnswerPull(requested.key, PullRefused("timeout"))]
        return self._let_wait(requested, now_s)

    def find(self, request: PullRequest) -> PublishedModel | None:
        """Return the model that a request gets now; a resumed pull gets the same version again."""
        if request.version:
            kept = [m for m, _ in self.served.values()]
            known = [*self.models, *self.snapshots.values(), *kept]
            same = [m for m in known if m.publication.version == request.version]
            if same or names_publication(request):
                return same[0] if same else None
        if request.exact:
            return self._snapshot(request.round, request.stage)
        earlier = [m for m in self.models if m.since < request.round]
        return earlier[-1] if earlier else None

    def withdraw(self, key: int) -> None:
        """Forget a waiting peer that withdrew its request."""
        self.waiting.pop(key, None)

    def refuse_others(self, allowed: set[str]) -> list[AnswerPull]:
        """Refuse all waiting peers that are not allowed."""
        keys = [k for k, (r, _) in self.waiting.items() if r.peer not in allowed]
        return self._refuse(keys, PullRefused("not_authorised"))

    def expire(self, now_s: float, longest_wait_s: float) -> list[AnswerPull]:
        """Refuse peers that have waited for longer."""
        self._set_time(now_s)
        before_s = now_s - longest_wait_s
        return self._refuse([k for k, (_, since_s) in self.waiting.items() if since_s < before_s])

    def _set_time(self, now_s: float) -> None:
        self.now_s = now_s
        since_s = now_s - SERVED_S
        self.served = {v: kept for v, kept in self.served.items() if kept[1] >= since_s}

    def _serve(self, requested: PullRequested, model: PublishedModel) -> AnswerPull:
        """Answer a peer, and keep the model for a while."""
        version = model.publication.version
        self.served.pop(version, None)
        self.served[version] = (model, self.now_s)
        while len(self.served) > MAX_SERVED:
            del self.served[next(iter(self.served))]
        return AnswerPull(requested.key, model.answer_to(requested.request))

    def _snapshot(self, round_: int, stage: int) -> PublishedModel | None:
        if round_ != self.round:
            return None
        if self.last_stage is not None:
            stage = min(stage, self.last_stage)
        return self.snapshots.get(stage)

    def _let_wait(self, requested: PullRequested, now_s: float) -> list[AnswerPull]:
        """Add a waiting peer; a repeated request replaces the earlier one of the same peer."""
        of_peer = [k for k, (r, _) in self.waiting.items() if r.peer == requested.peer]
        same = [k for k in of_peer if self.waiting[k][0].request == requested.request]
        answers = self._refuse(same, PullRefused("busy"))
        if len(of_peer) - len(same) >= self.per_peer:
            return [*answers, AnswerPull(requested.key, PullRefused("busy", retry_s=0.5))]
        self.waiting[requested.key] = (requested, now_s)
        return answers

    def _answer_waiting(self) -> list[AnswerPull]:
        answers = []
        for key, (requested, _) in list(self.waiting.items()):
            model = self._snapshot(requested.request.round, requested.request.stage)
            if model is not None:
                del self.waiting[key]
                answers.append(self._serve(requested, model))
        return answers

    def _refuse(self, keys: list[int], refusal: PullRefused | None = None) -> list[AnswerPull]:
        for key in keys:
            del self.waiting[key]
        return [AnswerPull(key, refusal or PullRefused("timeout")) for key in keys]


def names_publication(request: PullRequest) -> bool:
    """Return whether only one publication answers; a resumed pull may start over with another."""
    return request.version > 0 and request.offset == 0


class MaskLimit:
    """The masks that each peer has requested of the newest models.

    Each mask is a form of its own: it costs an encoding and a line in the event log. An order names
    one mask for each stage of a round, so an honest peer needs few of them.
    """

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, set[Mask]]] = {}  # by version, then by peer

    def allows(self, version: int, peer: str, mask: Mask | None) -> bool:
        """Register a request; return whether it may be answered."""
        if mask is None:
            return True
        masks = self._seen.setdefault(version, {}).setdefault(peer, set())
        while len(self._seen) > MAX_MASKED_MODELS:
            del self._seen[min(self._seen)]
        if mask not in masks and len(masks) >= MAX_MASKS:
            return False
        masks.add(mask)
        return True
