"""A whole testbed in virtual time: one coordinator machine, worker machines, a bad network.

Everything that happens is drawn from a seed, so a run that went wrong goes wrong again. The cluster
carries out the actions of the machines as the real shells do: what hangs in `then` of a write is
done only after the write succeeded, and a process that dies leaves nothing but its disk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from dystop.rng import stream
from dystop.testbed.events import (
    AnswerPull,
    CancelPull,
    CheckpointFailed,
    CheckpointSaved,
    CloseSession,
    Commit,
    CommitFailed,
    EpochFound,
    Exit,
    FinishRun,
    LookUpEpoch,
    Publication,
    PublishRecord,
    PullFailed,
    PullFinished,
    PullRequested,
    PullWithdrawn,
    SaveCheckpoint,
    SendToCoordinator,
    SendToMember,
    StartPull,
    StartTraining,
    Tick,
    TrainingFinished,
)
from dystop.testbed.ledger.tables import RoundLine
from dystop.testbed.protocol.messages import Execute, ModelHeader, PullRefused
from dystop.testbed.worker.history import EventLogger
from virtual.actors import Actor, Crash
from virtual.agenda import Agenda
from virtual.faults import CALM, Episode, Faults, draw_episodes
from virtual.toy import WIDTH, on_the_wire, train, wire_digest
from virtual.wires import Wires

TICK_S = 0.5
DETECT_S = 3.0  # until a cut is noticed
MakeWorker = Callable[[Actor], Any]  # (actor with disk and life) -> WorkerMachine
MakeCoordinator = Callable[[Actor], Any]


@dataclass
class Ask:
    """A fetch on its way: who wants it, from whom, and what the asker calls it."""

    asker: Actor
    life: int
    key: int
    server: Actor
    fetch: StartPull
    until_s: float
    begun_s: float
    over: bool = False
    refused: int = 0


class Cluster(Wires):
    """The whole of it. `run` until the coordinator says that the run is over."""

    def __init__(
        self,
        make_coordinator: MakeCoordinator,
        make_worker: MakeWorker,
        names: Sequence[str],
        seed: int = 0,
        faults: Faults = CALM,
    ) -> None:
        self.seed, self.faults = seed, faults
        self.rng = stream(seed, "virtual", "events")
        self.agenda = Agenda()
        self.make_coordinator, self.make_worker = make_coordinator, make_worker
        self.boss = Actor("coordinator", -1)
        self.nodes = [Actor(name, k) for k, name in enumerate(names)]
        self.by_name = {a.name: a for a in self.nodes}
        self.sessions: dict[str, int] = {}  # name -> number of its open session
        self.numbers = count(1)
        self.asks: dict[int, Ask] = {}  # by the server's key
        self.fetching: dict[tuple[str, int, int], Ask] = {}  # by (asker, life, its key)
        self.cuts: list[frozenset[int]] = []
        self.last_at: dict[tuple[str, str], float] = {}  # order of a session
        self.finished: str | None = None
        self.published: list[PublishRecord] = []
        self.shipped: dict[tuple[int, int, str], Any] = {}  # (src, version, digest) -> vector
        self.committed: set[int] = set()  # rounds whose plans are on the disk
        self.told: list[tuple[float, str, Any]] = []  # every message from the coordinator
        self.said: list[tuple[float, str, Any]] = []  # and to it
        self.slow = {a.node: 10.0 if self.rng.random() < faults.slow else 1.0 for a in self.nodes}
        self.step_s = {a.node: 0.2 + 0.4 * self.rng.random() for a in self.nodes}

    # Life and death ----------------------------------------------------------------------------

    def start(self) -> None:
        """Everybody begins; the episodes of the seed lie ahead."""
        self.boot(self.boss)
        for actor in self.nodes:
            self.boot(actor)
        for episode in draw_episodes(self.faults, len(self.nodes), self.seed):
            self.agenda.after(episode.at_s, lambda e=episode: self.strike(e))

    def boot(self, actor: Actor) -> None:
        """A new process with what is on the disk."""
        actor.life += 1
        actor.offset_s = float(self.rng.uniform(0, 1e5))
        actor.frozen, actor.doomed, actor.waiting = False, None, []
        make = self.make_coordinator if actor is self.boss else self.make_worker
        actor.machine = make(actor)
        if actor is not self.boss:
            actor.watch = EventLogger(lambda kind, **f: actor.lines.append({"kind": kind, **f}))
            state = actor.machine.state
            actor.watch.started(
                incarnation=actor.life,
                version=state.version,
                number=state.number,
                round=state.last_round,
                epoch=state.epoch,
            )
            self.later(actor, self.between(0.0, 0.3), lambda: self.connect(actor))
        self.tick(actor)

    def crash(self, actor: Actor) -> None:
        """The process is gone; its peers see their sessions break."""
        actor.machine, actor.doomed, actor.waiting = None, None, []
        actor.life += 1
        if actor is self.boss:
            for name in list(self.sessions):
                self.break_session(name)
        else:
            self.break_session(actor.name)
        for ask in list(self.asks.values()):
            if ask.server is actor:
                self.fail(ask, "unreachable")
            elif ask.asker is actor:
                self.forget(ask)

    def strike(self, episode: Episode) -> None:
        """An episode begins; its end is put on the agenda."""
        if self.finished is not None:
            return
        if episode.kind == "cut":
            self.cut(frozenset(episode.nodes), episode.lasts_s)
            return
        actor = self.boss if episode.nodes[0] < 0 else self.nodes[episode.nodes[0]]
        if not actor.up or actor.frozen:
            return
        if episode.kind == "crash":
            actor.doomed = episode.at_action
            self.agenda.after(episode.lasts_s, lambda: self.revive(actor))
        elif episode.kind == "freeze":
            self.freeze(actor, episode.lasts_s)
        else:
            actor.full = True
            self.agenda.after(episode.lasts_s, lambda: setattr(actor, "full", False))

    def revive(self, actor: Actor) -> None:
        """Start again what has died; what has not met its doom yet meets it now."""
        if actor.exits:
            return
        if actor.up:
            self.crash(actor)
        self.boot(actor)

    def freeze(self, actor: Actor, lasts_s: float) -> None:
        actor.frozen, life = True, actor.life

        def thaw() -> None:
            if actor.life != life or not actor.up:
                return
            actor.frozen = False
            waiting, actor.waiting = actor.waiting, []
            for event in waiting:
                if actor.life == life:
                    self.handle(actor, event)

        self.agenda.after(lasts_s, thaw)

    def cut(self, side: frozenset[int], lasts_s: float) -> None:
        """These nodes can reach each other and nobody else."""
        self.cuts.append(side)

        def notice() -> None:
            if side in self.cuts:
                for node in side:
                    self.break_session(self.nodes[node].name)
                for ask in list(self.asks.values()):
                    if self.is_cut(ask.asker.node, ask.server.node):
                        self.fail(ask, "unreachable")

        self.agenda.after(DETECT_S, notice)
        self.agenda.after(lasts_s, lambda: self.cuts.remove(side))

    def is_cut(self, a: int, b: int) -> bool:
        return any((a in side) != (b in side) for side in self.cuts)

    # Events to machines ------------------------------------------------------------------------

    def between(self, lo: float, hi: float) -> float:
        return float(self.rng.uniform(lo, hi))

    def clock_s(self, actor: Actor) -> float:
        return self.agenda.now_s + actor.offset_s

    def later(self, actor: Actor, delay_s: float, deed: Callable[[], None]) -> None:
        """Do something unless the process is gone by then."""
        life = actor.life
        self.agenda.after(delay_s, lambda: deed() if actor.life == life and actor.up else None)

    def give(self, actor: Actor, delay_s: float, event: Any) -> None:
        self.later(actor, delay_s, lambda: self.handle(actor, event))

    def tick(self, actor: Actor) -> None:
        if actor.up and not actor.frozen:
            self.handle(actor, Tick())
        self.later(actor, TICK_S, lambda: self.tick(actor))

    def handle(self, actor: Actor, event: Any) -> None:
        """Let a machine handle an event and carry out what it wants."""
        if actor.frozen:
            actor.waiting.append(event)
            return
        if actor.watch is not None:
            actor.watch.event(event)
        try:
            self.perform(actor, actor.machine.handle(event, self.clock_s(actor)))
        except Crash:
            self.crash(actor)

    def perform(self, actor: Actor, actions: Sequence[Any]) -> None:
        for action in actions:
            actor.spend()
            if not actor.up:
                return
            if actor.watch is not None:
                actor.watch.action(action)
            getattr(self, f"on_{type(action).__name__.lower()}")(actor, action)

    # What workers want -------------------------------------------------------------------------

    def on_sendtocoordinator(self, actor: Actor, action: SendToCoordinator) -> None:
        self.said.append((self.agenda.now_s, actor.name, action.message))
        self.transmit(actor.name, "up", action.message)

    def on_savecheckpoint(self, actor: Actor, action: SaveCheckpoint) -> None:
        if actor.full:
            self.perform(actor, actor.machine.handle(CheckpointFailed("full"), self.clock_s(actor)))
            return
        actor.disk = action.state
        self.perform(actor, actor.machine.handle(CheckpointSaved(), self.clock_s(actor)))
        self.perform(actor, action.after_save)

    def on_starttraining(self, actor: Actor, action: StartTraining) -> None:
        steps = self.slow[actor.node] * self.step_s[actor.node] * max(action.steps, 1)
        vector = train(action.vector, actor.node, action.number, action.steps, action.rate)
        seconds = steps * self.between(0.9, 1.1)
        done = TrainingFinished(action.number, vector, action.counters, 1.0, action.steps, seconds)
        self.give(actor, seconds, done)

    def on_startpull(self, actor: Actor, action: StartPull) -> None:
        server = self.by_name[action.name]
        patience = max(action.deadline_s - self.clock_s(actor), 0.0)
        now_s = self.agenda.now_s
        ask = Ask(actor, actor.life, action.key, server, action, now_s + patience, now_s)
        self.fetching[actor.name, actor.life, action.key] = ask
        self.agenda.after(patience, lambda: self.fail(ask, "timeout"))
        self.ask(ask)

    def ask(self, ask: Ask) -> None:
        """Put the question to the server, under a key that it has not seen."""
        number = next(self.numbers)
        self.asks[number] = ask
        delay = self.between(*self.faults.delay_s)
        bad = self.rng.random() < self.faults.fetch_fails
        if bad or not ask.server.up or self.is_cut(ask.asker.node, ask.server.node):
            self.agenda.after(delay, lambda: self.fail(ask, "unreachable"))
            return
        self.give(ask.server, delay, PullRequested(number, ask.asker.name, ask.fetch.request))

    def on_answerpull(self, actor: Actor, action: AnswerPull) -> None:
        ask = self.asks.pop(action.key, None)
        if ask is None or ask.over:
            return
        if isinstance(action.answer, PullRefused):
            self.refuse(ask, action.answer)
            return
        self.ship(actor, ask, action.answer)

    def refuse(self, ask: Ask, answer: PullRefused) -> None:
        """Ask again as a fetcher does: when told to, and where a roster may be on its way."""
        ask.refused += answer.code in ("not_authorised", "no_model")
        pause_s = answer.retry_s or (0.3 if 0 < ask.refused <= 4 else 0.0)
        if pause_s > 0 and self.agenda.now_s + pause_s < ask.until_s:
            self.agenda.after(pause_s, lambda: None if ask.over else self.ask(ask))
            return
        self.fail(ask, answer.code)

    def ship(self, server: Actor, ask: Ask, publication: Publication) -> None:
        request = ask.fetch.request
        digest = wire_digest(publication.vector, request)
        server.watch.served(publication, request, digest)
        vector = np.array(on_the_wire(publication.vector, request))
        self.shipped[server.node, publication.version, digest] = np.array(publication.vector)
        seconds = self.between(0.02, 0.1)
        header = ModelHeader(
            publication.version, publication.number, publication.round, 4 * WIDTH, digest, "toy"
        )

        def arrive() -> None:
            if ask.over or self.is_cut(ask.asker.node, server.node):
                return
            self.forget(ask)
            took = self.agenda.now_s - ask.begun_s
            if ask.asker.life == ask.life and ask.asker.up:
                self.handle(ask.asker, PullFinished(ask.key, header, vector, 4 * WIDTH, took))

        self.agenda.after(seconds, arrive)

    def fail(self, ask: Ask, code: Any) -> None:
        if ask.over:
            return
        self.forget(ask)
        if ask.asker.life == ask.life and ask.asker.up:
            seconds = self.agenda.now_s - ask.begun_s
            self.handle(ask.asker, PullFailed(ask.key, code, 0, seconds))

    def forget(self, ask: Ask) -> None:
        """It is over; a server that still has it in mind hears that the asker has gone."""
        ask.over = True
        self.fetching.pop((ask.asker.name, ask.life, ask.key), None)
        for number in [k for k, a in self.asks.items() if a is ask]:
            del self.asks[number]
            self.give(ask.server, self.between(*self.faults.delay_s), PullWithdrawn(number))

    def on_cancelpull(self, actor: Actor, action: CancelPull) -> None:
        ask = self.fetching.get((actor.name, actor.life, action.key))
        if ask is not None:
            self.forget(ask)

    def on_exit(self, actor: Actor, action: Exit) -> None:
        actor.exits.append(action)
        self.crash(actor)

    # What the coordinator wants ----------------------------------------------------------------

    def on_sendtomember(self, actor: Actor, action: SendToMember) -> None:
        message = action.message
        if isinstance(message, Execute):  # nothing is promised before it is written down
            assert message.round in self.committed
        self.told.append((self.agenda.now_s, action.name, message))
        self.transmit(action.name, "down", message)

    def on_closesession(self, actor: Actor, action: CloseSession) -> None:
        self.agenda.after(self.faults.delay_s[1], lambda: self.break_session(action.name))

    def on_commit(self, actor: Actor, action: Commit) -> None:
        if actor.full:
            self.perform(
                actor, actor.machine.handle(CommitFailed(action, "full"), self.clock_s(actor))
            )
            return
        actor.disk.write(action.entries)
        self.committed |= {e.round for e in action.entries if isinstance(e, RoundLine)}
        self.perform(actor, action.after_commit)

    def on_lookupepoch(self, actor: Actor, action: LookUpEpoch) -> None:
        self.give(actor, 0.0, EpochFound(action.claim, actor.disk.epoch()))

    def on_publishrecord(self, actor: Actor, action: PublishRecord) -> None:
        self.published.append(action)

    def on_finishrun(self, actor: Actor, action: FinishRun) -> None:
        self.finished = action.reason

    # The end -----------------------------------------------------------------------------------

    def run(self, limit_s: float = 3600.0, after_s: float = 30.0) -> None:
        """Until the coordinator says that the run is over, and a while for what is on its way."""
        self.start()
        while self.finished is None and self.agenda.now_s < limit_s and self.agenda.step():
            pass
        end_s = self.agenda.now_s + after_s
        while self.agenda.now_s < end_s and self.agenda.step():
            pass


def names_of(nodes: int, server: bool = False) -> list[str]:
    names = [f"w{k:02d}" for k in range(nodes)]
    return [*names, "server"] if server else names
