"""What a worker hands out: its last publications, and snapshots for those who need an exact one.

A pull for round t gets the newest publication that comes from before round t. An exact pull gets
the model that the worker has right before a stage of round t, and waits (parked) until there is
one. Nothing here is ever changed after it was put in, so a slow peer can go on with what it began.
"""

from dataclasses import dataclass, field

from dystop.testbed.events import Asked, Publication, Serve, Vector
from dystop.testbed.protocol.messages import PullRefused, PullRequest

KEPT = 3  # publications: the newest, and two for those who are still fetching


@dataclass(frozen=True)
class PublishedModel:
    """A publication, where its training began, and since which round it is what it is."""

    publication: Publication
    since: int  # of the order that made it, passive ones included
    start: Vector | None = None

    def as_asked(self, request: PullRequest) -> Publication | PullRefused:
        """The model, or the update behind it (trained minus start)."""
        if not request.delta:
            return self.publication
        if self.start is None:
            return PullRefused("no_model")
        p = self.publication
        return Publication(p.version, p.number, p.round, p.vector - self.start)


@dataclass
class PublishedModels:
    """Publications, snapshots and peers that wait for one. Owned by one thread."""

    per_peer: int = 2  # exact pulls of one peer that may wait at once
    entries: list[PublishedModel] = field(default_factory=list)  # oldest first
    round: int = 0  # whose snapshots are kept
    last_stage: int | None = None  # all stages from here on have the same snapshot
    snapshots: dict[int, PublishedModel] = field(default_factory=dict)  # by stage of that round
    parked: dict[int, tuple[Asked, float]] = field(default_factory=dict)  # by key, with the time

    def publish(self, entry: PublishedModel) -> None:
        """Hand this out from now on."""
        self.entries = [*self.entries, entry][-KEPT:]

    def retract(self, version: int) -> None:
        """Hand out nothing newer than this version: it could not be written down."""
        self.entries = [e for e in self.entries if e.publication.version <= version]

    def open(self, round_: int) -> list[Serve]:
        """An order of this round is taken up; who waits for an older one waits in vain."""
        self.round, self.last_stage, self.snapshots = round_, None, {}
        return self._refuse([k for k, (a, _) in self.parked.items() if a.request.round < round_])

    def remember(self, stage: int, entry: PublishedModel, *, last: bool = False) -> list[Serve]:
        """Keep what the worker has right before a stage; serves those who waited for it."""
        self.snapshots[stage] = entry
        if last:
            self.last_stage = stage
        return self._release()

    def close(self, round_: int) -> list[Serve]:
        """This round is over for this worker; there will be no more snapshots of it."""
        return self._refuse([k for k, (a, _) in self.parked.items() if a.request.round <= round_])

    def ask(self, asked: Asked, now_s: float, *, expected: bool) -> list[Serve]:
        """Serve a peer now, or park it.

        Args:
            asked: Who wants what.
            now_s: Machine time.
            expected: Whether a snapshot of that round may still come.
        """
        request = asked.request
        entry = self.find(request)
        if entry is not None:
            return [Serve(asked.key, entry.as_asked(request))]
        if not request.exact:
            return [Serve(asked.key, PullRefused("no_model"))]
        if not expected:
            return [Serve(asked.key, PullRefused("timeout"))]
        return self._park(asked, now_s)

    def find(self, request: PullRequest) -> PublishedModel | None:
        """What a request gets at this moment."""
        if request.version and request.offset:
            known = [e for e in self._all() if e.publication.version == request.version]
            if known:
                return known[0]
        if request.exact:
            return self._snapshot(request.round, request.stage)
        old = [e for e in self.entries if e.since < request.round]
        return old[-1] if old else None

    def drop(self, key: int) -> None:
        """The peer has gone."""
        self.parked.pop(key, None)

    def expel(self, names: set[str]) -> list[Serve]:
        """Refuse everybody who waits and is not among these."""
        keys = [k for k, (a, _) in self.parked.items() if a.peer not in names]
        return self._refuse(keys, PullRefused("not_authorised"))

    def expire(self, before_s: float) -> list[Serve]:
        """Refuse who has waited since before this time."""
        return self._refuse([k for k, (_, since) in self.parked.items() if since < before_s])

    def _all(self) -> list[PublishedModel]:
        return [*self.entries, *self.snapshots.values()]

    def _snapshot(self, round_: int, stage: int) -> PublishedModel | None:
        if round_ != self.round:
            return None
        if self.last_stage is not None:
            stage = min(stage, self.last_stage)
        return self.snapshots.get(stage)

    def _park(self, asked: Asked, now_s: float) -> list[Serve]:
        """Let a peer wait; a repeated request of its takes the place of the one before."""
        mine = [k for k, (a, _) in self.parked.items() if a.peer == asked.peer]
        same = [k for k in mine if self.parked[k][0].request == asked.request]
        answers = self._refuse(same, PullRefused("busy"))
        if len(mine) - len(same) >= self.per_peer:
            return [*answers, Serve(asked.key, PullRefused("busy", retry_s=0.5))]
        self.parked[asked.key] = (asked, now_s)
        return answers

    def _release(self) -> list[Serve]:
        served = []
        for key, (asked, _) in list(self.parked.items()):
            entry = self._snapshot(asked.request.round, asked.request.stage)
            if entry is not None:
                del self.parked[key]
                served.append(Serve(key, entry.as_asked(asked.request)))
        return served

    def _refuse(self, keys: list[int], why: PullRefused | None = None) -> list[Serve]:
        for key in keys:
            del self.parked[key]
        return [Serve(key, why or PullRefused("timeout")) for key in keys]
