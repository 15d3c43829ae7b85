"""The types that simulator, testbed and mechanisms share.

Fleet         the workers and their data; fixed for a run
Observation   the state of workers and links when a round opens, simulated or measured
ControlState  what the coordinator remembers between rounds
View          fleet, control state and observation, read-only: all that a mechanism may know
Plan          the decision of a mechanism for one round (see `dystop.plan`)
Outcome       what happened in a round
Mechanism     hyper-parameters, and the pure methods `init`, `plan` and `capabilities`
RoundRecord   one line of `records.jsonl` (see `dystop.record`)

Arrays of workers have N entries. Where a mechanism uses a parameter server, the server is node N,
and arrays of nodes have N + 1 entries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from dystop.carried import Carried, Values
from dystop.plan import Plan
from dystop.rng import stream
from dystop.sparse import Bools, Floats, Graph, Ints, PairCounts, check_ids

Memory = Mapping[str, Any]
"""What a mechanism remembers between rounds: a tree of dicts, lists, arrays and scalars."""

Feedback = Literal["loss", "distance"]

BudgetOf = Callable[[Ints], Floats]
"""Returns the models that some nodes may send and receive in a round."""


@dataclass(frozen=True)
class Fleet:
    """The workers and their data. The coordinator knows them from enrolment; a run fixes them."""

    data_size: Ints  # D_i, [N]
    label_counts: Ints  # D_i^k, [N, K]
    batch: int  # |xi_i|, samples in a mini-batch
    model_bytes: int  # bytes of one full model on the wire
    horizon: int  # T, planned rounds of the run
    seed: int
    server: bool = False  # whether node N is a parameter server
    horizon_s: float = 0.0  # planned seconds of the run; 0: only rounds are planned

    @property
    def workers(self) -> int:
        """Number of workers N."""
        return len(self.data_size)

    @property
    def nodes(self) -> int:
        """Number of nodes: N, or N + 1 with a server."""
        return self.workers + int(self.server)

    @cached_property
    def samples(self) -> int:
        """Training samples of all workers, D."""
        return int(self.data_size.sum())

    @property
    def epoch_steps(self) -> Ints:
        """Mini-batches in one local epoch, `ceil(D_i / |xi_i|)`, [N]."""
        return -(-self.data_size // self.batch)


@dataclass(frozen=True)
class Mailbox:
    """Pushed messages that have arrived and wait for their receivers, sorted by (dst, src)."""

    dst: Ints
    src: Ints
    version: Ints  # trainings the sender had finished when it sent
    sent: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # round of sending

    def of(self, i: int) -> Ints:
        """Return the senders whose messages wait at worker i."""
        return self.to(np.array([i])).src

    def to(self, nodes: Ints) -> "Mailbox":
        """Return the messages to some nodes."""
        if not len(self.dst):
            return self
        here = np.isin(self.dst, nodes)
        sent = self.sent[here] if len(self.sent) else self.sent
        return Mailbox(self.dst[here], self.src[here], self.version[here], sent)

    def __len__(self) -> int:
        return len(self.dst)


def no_mail() -> Mailbox:
    """Return an empty mailbox."""
    none = np.zeros(0, np.int64)
    return Mailbox(none, none, none, none)


@dataclass(frozen=True)
class Budgets:
    """The models that nodes may send and receive in a round, where those of all nodes are known."""

    models: Floats  # [nodes]

    def __call__(self, nodes: Ints) -> Floats:
        """Return the budgets of some nodes."""
        return self.models[nodes]


@dataclass(frozen=True)
class Observation:
    """The state of workers and links when a round opens, simulated or measured."""

    alive: Bools  # [N]
    reach: Graph  # usable directed links between alive nodes
    distance_m: Floats  # [E]
    link_s: Floats  # [E], expected seconds to move one full model
    step_s: Floats  # [N], seconds per mini-batch
    remaining_s: Floats  # [N], h_t^{i,cmp}: remaining seconds of local training
    budget_of: BudgetOf  # models that some nodes may send and receive now
    mailbox: Mailbox = field(default_factory=no_mail)


@dataclass(frozen=True)
class Outcome:
    """What happened in a round.

    Arrays [L] follow the order of `plan.links`, arrays [A] the order of `plan.active`.
    """

    duration_s: float  # H_t
    comm_s: Floats  # [A], exchange time of each active worker
    link_s: Floats  # [L]
    link_bytes: Ints  # [L]
    lost: Bools  # [L], transfers that failed
    loss: Floats  # [A], mean training loss of the new local training; NaN until it has ended
    samples: int  # images trained on
    idle_s: float = 0.0  # seconds, summed over workers, spent neither training nor exchanging
    active: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    dst: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # [L]
    src: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # [L]
    distance: Floats | None = None  # [L], ||w_dst - w_src|| if the mechanism needs it
    failed: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [A]; empty: none failed
    compute_s: float = 0.0  # as in control.time_spent, summed over workers
    transfer_s: float = 0.0
    wait_others_s: float = 0.0
    trained_s: float | None = None  # the trainings that ended, where devices are emulated
    emulated_s: float | None = None  # how long the emulated devices would have trained


@dataclass(frozen=True)
class Score:
    """The result of an evaluation of all models on the test set.

    `accuracy` is the score of the task, which `name` names: of a classification its accuracy.
    """

    accuracy: float  # mean over the workers' own models: the paper's test accuracy
    accuracy_std: float
    accuracy_global: float  # of the data-weighted global model, eq:weightedmodel
    loss: float  # mean of the finite test losses of the workers' own models
    loss_global: float
    diverged: int = 0  # workers whose test loss is not finite
    tested: int | None = None  # models that were evaluated; None: those of all workers
    name: str = "accuracy"  # of the score
    worker_accuracy: Sequence[float | None] = ()  # [N], or empty: not asked for
    worker_loss: Sequence[float | None] = ()  # None: not tested, or not finite


@dataclass(frozen=True)
class ControlState:
    """What the coordinator remembers between rounds."""

    t: int  # the next round, from 1
    clock_s: float
    staleness: Ints  # tau_t^i, [N]
    queue: Floats  # q_t^i, [N]
    version: Ints  # local trainings started after the first, [N]
    active_s: Floats  # when the last round opened in which the worker was active, [N]
    pulls: PairCounts  # Pull(v_i, v_j)
    memory: Memory  # of the mechanism
    wire_bytes: int = 0  # of all rounds; counts each transfer once
    samples: int = 0  # images trained on in all rounds
    last: Outcome | None = None


@dataclass(frozen=True)
class View:
    """All that a mechanism may know when round t opens. Read-only."""

    t: int
    now_s: float
    fleet: Fleet
    staleness: Ints
    queue: Floats
    version: Ints
    pulls: PairCounts
    last: Outcome | None
    alive: Bools
    reach: Graph
    distance_m: Floats
    link_s: Floats
    step_s: Floats
    remaining_s: Floats
    mailbox: Mailbox
    budget_of: BudgetOf

    @property
    def budget(self) -> Floats:
        """The models that every node may send and receive now, [nodes]."""
        return self.budget_of(np.arange(len(self.alive) + self.fleet.server))

    @property
    def progress(self) -> float:
        """The completed share of the run, from 0 in the first round to 1.

        It counts seconds if the run has a planned duration, and rounds otherwise.
        """
        if self.fleet.horizon_s > 0:
            return min(self.now_s / self.fleet.horizon_s, 1.0)
        return min((self.t - 1) / self.fleet.horizon, 1.0)

    def rng(self, *key: str | int) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed, the round and the key."""
        return stream(self.fleet.seed, "mechanism", self.t, *key)

    def neighbours(self, i: int) -> Ints:
        """Return the workers that worker i may pull from now, ascending: those in its reach.

        >>> from dystop.conformance import random_view
        >>> random_view(0, 4, shape="complete", all_alive=True).neighbours(1).tolist()
        [0, 2, 3]
        """
        check_ids(self.fleet.workers, np.array([i]))
        near = self.reach.row(i)
        return near[near < self.fleet.workers]

    def k_nearest(
        self,
        k: int,
        *,
        by: Literal["link_s", "distance_m"] = "link_s",
        worker: int | None = None,
    ) -> tuple[Ints, Ints]:
        """Return links from the k nearest workers in reach, to every worker or to one.

        Args:
            k: In-neighbours of a worker; fewer where fewer are in reach.
            by: What "near" means: the expected transfer time of a model, or metres.
            worker: The only receiver; all workers if None.

        Returns:
            (dst, src), ordered by dst and then nearest first; ties go to the lower id.
        """
        dst, src = self.reach.dst, self.reach.src
        here = (dst < self.fleet.workers) & (src < self.fleet.workers)
        edge = np.flatnonzero(here if worker is None else here & (dst == worker))
        cost: Floats = getattr(self, by)
        edge = edge[np.lexsort((src[edge], cost[edge], dst[edge]))]
        rank = np.arange(len(edge)) - np.searchsorted(dst[edge], dst[edge])
        chosen = edge[rank < k]
        return dst[chosen], src[chosen]


FAITHFUL = frozenset({"paper", "authors' code", "own work", "example"})
"""Values of `Mechanism.provenance` that need no warning in a report.

A mechanism is faithful if it follows its source to the letter, or if it has no other source. The
remaining values are "abstract" (only an abstract was available), "reconstruction" (the published
text leaves decisions open) and "reference" (a textbook method without one source).
"""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a mechanism needs from the system, and what it guarantees about its plans.

    The simulator and the testbed provide what is needed. The conformance kit checks what is
    guaranteed.
    """

    mode: Literal["async", "sync"]
    needs: frozenset[Feedback] = frozenset()  # measurements in `view.last`
    server: bool = False  # node N is a parameter server
    deltas: bool = False  # links or rows carry updates instead of models
    pushes: bool = False  # messages wait in mailboxes, so copies of models are kept
    collective: bool = False  # models travel around a ring: as sums or, with a codec, one by one
    warm_start: bool = True  # all workers begin training at time 0
    signed_rows: bool = False  # mixing weights may be negative
    doubly_stochastic: bool = False  # mixing keeps the mean of all models
    budgeted: bool = False  # no node exceeds its bandwidth budget
    compensates: bool = False  # rows correct updates for their age, so starts of trainings are kept
    carries: tuple[Carried, ...] = ()  # vectors of each worker beside its model
    corrects: bool = False  # `correction` is added to every local gradient
    queue_bound: float | None = None  # staleness bound of the virtual queues; None: empty queues


@dataclass(frozen=True)
class Mechanism:
    """The base class of mechanisms: fields hold hyper-parameters, pure methods decide.

    A subclass is a frozen dataclass. It sets the class variables `name`, `provenance` and
    `summary`, implements `plan`, and overrides `capabilities` and `init` where needed.
    """

    name: ClassVar[str]
    provenance: ClassVar[str]  # paper, authors' code, abstract, reconstruction, reference, own work
    summary: ClassVar[str]

    def capabilities(self) -> Capabilities:
        """Return what this mechanism needs and guarantees with its current hyper-parameters.

        Override this method. The default is asynchronous, and needs and guarantees nothing.
        """
        return Capabilities(mode="async")

    def our_parts(self) -> tuple[str, ...]:
        """Return what is not from the source that `provenance` names, as in ("base graph",).

        It may depend on hyper-parameters. Lists and reports show it behind the provenance.
        """
        return ()

    def init(self, fleet: Fleet) -> Memory:
        """Return the memory of the mechanism before the first round."""
        return {}

    def base_graph(self, memory: Memory, view: View) -> Graph | None:
        """Return the graph over which models spread to all workers; None if plans decide it freely.

        A run warns at its start if this graph is not connected although the network is.
        """
        return None

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Decide one round; return the plan and the memory for the next round."""
        raise NotImplementedError(f"{type(self).__name__} must implement `plan`")

    def after_mixing(self, own: Values, mixed: Values, dt: Any) -> Values:
        """Return what else mixing changes of a worker's model and carried vectors, by name.

        This place and the two below must be pure and elementwise: they get the vectors of one
        worker, [width], or those of several, [workers, width].

        Args:
            own: The vectors of the worker before the round, with its trained parameters as "model".
            mixed: The same after all stages of mixing.
            dt: Seconds since the last round of the worker opened, [1] or [workers, 1].
        """
        return {}

    def correction(self, carried: Values) -> Any:
        """Return what is added to every local gradient, where `Capabilities.corrects` says so."""
        raise NotImplementedError(f"{type(self).__name__} must implement `correction`")

    def after_training(
        self, start: Any, trained: Any, carried: Values, steps: Any, rate: Any
    ) -> Values:
        """Return the carried vectors that a local training changes, by name.

        Args:
            start: Trained parameters before the training.
            trained: The same after it.
            carried: The vectors of the worker before it.
            steps: Mini-batches that were taken; 0 for a worker without data.
            rate: Learning rate of each of them.
        """
        return {}


OUR = ", our "
"""What stands in a provenance before the parts that are not from its source."""


def provenance_of(mechanism: Mechanism) -> str:
    """Return the provenance of a mechanism with its hyper-parameters, and which parts are ours.

    >>> from dystop.mechanisms import Matcha
    >>> provenance_of(Matcha()), provenance_of(Matcha(weights="optimal"))
    ("authors' code, our base graph and weights", "authors' code, our base graph")
    """
    ours = mechanism.our_parts()
    return mechanism.provenance + (OUR + " and ".join(ours) if ours else "")
