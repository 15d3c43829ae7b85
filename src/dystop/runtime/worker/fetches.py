"""Which fetches a worker has under way, and from whom it may fetch. Part of `WorkerMachine`."""

from collections.abc import Iterable

from dystop.runtime.events import Abandon, Fetch, WorkerAction
from dystop.runtime.wire.messages import Execute, Peer, Pull, PullRequest
from dystop.runtime.worker.errand import Errand, Wanted, weight_of
from dystop.runtime.worker.guard import Guard
from dystop.runtime.worker.state import WorkerSetup


class Fetches:
    """Keys, peers, and fetches that nobody waits for."""

    def __init__(self, setup: WorkerSetup, guard: Guard) -> None:
        """Without peers; the roster brings them."""
        self._setup, self._guard = setup, guard
        self._last_key = 0
        self.peers: dict[int, Peer] = {}
        self.background: dict[int, Wanted] = {}

    def meet(self, peers: Iterable[Peer]) -> None:
        """These take part now. A peer that is new, or lives elsewhere now, may have begun anew."""
        known = {p.node: p for p in peers if p.node != self._setup.node}
        for node, peer in known.items():
            if self.peers.get(node) != peer:
                self._guard.forget(node)
                self._guard.forget(-1 - node)
        self.peers = known

    def knows(self, order: Execute) -> bool:
        """Whether all from whom an order wants to fetch take part, as far as we know."""
        return all(p.node in self.peers for stage in order.stages for p in stage.pulls)

    def begin_stage(self, errand: Errand, run: str, now_s: float) -> list[WorkerAction]:
        """Fetch all that the stage needs, at once; what cannot be fetched is missing."""
        order, actions = errand.order, list[WorkerAction]()
        here = order.stages[errand.stage]
        for pull in here.pulls:
            weight = weight_of(here.row, pull.node) if pull.into == "row" else None
            wanted = Wanted(pull, order.round, errand.stage, weight)
            if pull.node not in self.peers:
                errand.miss(wanted, "unreachable")
            elif pull.background:
                cap_s = now_s + self._setup.timeouts.round_cap_s
                actions.append(self._fetch(wanted, run, self.background, cap_s))
            elif now_s >= errand.deadline_s:
                errand.miss(wanted, "timeout")
            else:
                actions.append(self._fetch(wanted, run, errand.waiting, errand.deadline_s))
        return actions

    def abandon(self, errand: Errand) -> list[WorkerAction]:
        """Give up what an order still waits for."""
        keys = list(errand.waiting)
        errand.waiting.clear()
        return [Abandon(key) for key in keys]

    def abandon_strangers(self, errand: Errand | None) -> list[WorkerAction]:
        """Give up fetches from those who no longer take part."""
        actions: list[WorkerAction] = []
        for key in [k for k, w in self.background.items() if w.pull.node not in self.peers]:
            del self.background[key]
            actions.append(Abandon(key))
        waiting = errand.waiting if errand else {}
        for key in [k for k, w in waiting.items() if w.pull.node not in self.peers]:
            if errand:
                errand.miss(waiting.pop(key), "not_authorised")
            actions.append(Abandon(key))
        return actions

    def _fetch(self, wanted: Wanted, run: str, into: dict[int, Wanted], deadline_s: float) -> Fetch:
        self._last_key += 1
        into[self._last_key] = wanted
        peer = self.peers[wanted.pull.node]
        request = _request(run, wanted.pull, wanted.round, wanted.stage)
        return Fetch(self._last_key, peer.node, peer.name, peer.address, request, deadline_s)


def _request(run: str, pull: Pull, round_: int, stage: int) -> PullRequest:
    return PullRequest(
        run=run,
        round=round_,
        stage=stage,
        exact=pull.exact,
        delta=pull.delta,
        mask=pull.mask,
        bytes_per_s=pull.bytes_per_s,
    )
