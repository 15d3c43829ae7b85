"""What a coordinator is made of, and who it lets in."""

from dataclasses import dataclass, field
from typing import Protocol

from dystop.control.staleness_weighting import StalenessWeighting
from dystop.control.stopping import Evaluate, Stop
from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints
from dystop.testbed.coordinator.members import Enrolled, Member
from dystop.testbed.coordinator.observations import MeasuredState
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import PROTOCOL, Join, Reject
from dystop.types import Fleet, Mechanism

OBSERVER = "observer"
SERVER = "server"
COORDINATOR = "coordinator"


class TransferTime(Protocol):
    """What moving models takes (`world.Transfer`)."""

    @property
    def seconds(self) -> Floats:
        """Of each link."""
        ...


class LinkMeasurements(Protocol):
    """The world that is emulated, or a stand-in for it."""

    def observe(self, t: int, now_s: float) -> MeasuredState:
        """What may be known when round t opens."""
        ...

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> TransferTime:
        """What moving a share of a model over each link takes."""
        ...


@dataclass(frozen=True)
class CoordinatorSetup:
    """All that a coordinator knows before anybody comes."""

    run: str
    fleet: Fleet
    mechanism: Mechanism
    world: LinkMeasurements
    steps: Ints  # mini-batches of one local training, [N]
    members: tuple[Enrolled, ...]  # workers, and server and observer where there are any
    schema: str  # of the model
    params: TestbedParams = field(default_factory=TestbedParams)
    stop: Stop = field(default_factory=Stop)
    evaluate: Evaluate = field(default_factory=Evaluate)
    remedy: StalenessWeighting = field(default_factory=StalenessWeighting)
    topology: bool = True  # write active workers and links into the records
    moving: bool = False  # write positions into the records

    def __post_init__(self) -> None:
        """Refuse what the testbed cannot do."""
        if self.remedy.rule == "compensate":
            raise ConfigError(
                "staleness.rule = 'compensate' is not possible in the testbed: a worker does not "
                "know where its neighbours' trainings began; choose another rule or the simulator"
            )
        nodes = sorted(e.node for e in self.members if e.name != OBSERVER)
        if nodes != list(range(self.fleet.nodes)):
            raise ConfigError(
                f"members: nodes 0..{self.fleet.nodes - 1} must be enrolled once each, got {nodes}"
            )


def member_name(node: int, workers: int) -> str:
    """Name of a worker's node.

    >>> member_name(3, 15), member_name(3, 200)
    ('w03', 'w003')
    """
    return f"w{node:0{max(2, len(str(workers - 1)))}d}"


def refusal(setup: CoordinatorSetup, member: Member | None, join: Join) -> Reject | None:
    """Why somebody is not let in; None: welcome."""
    if member is None:
        return Reject("unknown", "this name is not enrolled in this run; enrol it first")
    if join.protocol != PROTOCOL:
        return Reject("protocol", f"protocol {join.protocol}, the coordinator speaks {PROTOCOL}")
    if join.run not in ("", setup.run):
        return Reject("run", _another_run(join.run, setup.run))
    if member.state == "QUARANTINED":
        return Reject("quarantined", f"quarantined: {member.note}; the operator can lift it"[:200])
    return _mismatch(setup, member, join)


def _another_run(theirs: str, ours: str) -> str:
    return (
        f"what it remembers is of run {theirs[:16]}..., this is run {ours[:16]}...; start it with "
        "another --folder, or delete its old one"
    )


def _other_labels(theirs: tuple[int, ...], enrolled: tuple[int, ...]) -> str:
    """Where label counts differ first."""
    if len(theirs) != len(enrolled):
        what = f"{len(theirs)} label counts, enrolled were {len(enrolled)}"
    else:
        label = next(k for k, (a, b) in enumerate(zip(theirs, enrolled, strict=True)) if a != b)
        what = f"{theirs[label]} samples of label {label}, enrolled were {enrolled[label]}"
    return f"{what}; enrol anew to change it"


def _mismatch(setup: CoordinatorSetup, member: Member, join: Join) -> Reject | None:
    """What a member says about itself must be what was enrolled: nobody can grow on its own."""
    known = member.enrolled
    if join.schema != setup.schema:
        what = f"model schema {join.schema[:16]}..., expected {setup.schema[:16]}..."
        return Reject("schema", f"{what}; same model, same version of dystop?")
    if join.data_size != known.data_size:
        what = f"data size {join.data_size}, enrolled were {known.data_size}"
        return Reject("enrolment", f"{what}; enrol anew to change it"[:200])
    if join.label_counts != known.label_counts:
        return Reject("enrolment", _other_labels(join.label_counts, known.label_counts))
    if join.incarnation < member.incarnation:
        return Reject("replaced", "a newer process of this member is in the run")
    return None
