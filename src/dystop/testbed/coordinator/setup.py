"""What a coordinator is built from, and which joins it refuses."""

import math
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from dystop.control.stopping import Evaluate, Stop
from dystop.errors import ConfigError
from dystop.format import FORMAT, other_format
from dystop.record import ACCURACY
from dystop.recorders.recorder import Recorders
from dystop.sparse import Floats, Ints
from dystop.testbed.coordinator.members import Enrolled, Member
from dystop.testbed.names import OBSERVER
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.codec import shown
from dystop.testbed.protocol.messages import Join, Reject
from dystop.types import Fleet, Mechanism
from dystop.world import Transfer, WorldState

_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")


class EmulatedWorld(Protocol):
    """The world that the testbed emulates: simulated, or the links of a recorded run."""

    def observe(self, t: int, now_s: float) -> WorldState:
        """Return what may be known when round t opens."""
        ...

    def transfer(
        self, t: int, now_s: float, dst: Ints, src: Ints, fraction: float | Floats
    ) -> Transfer:
        """Return how long it takes to move a fraction of a model over each link."""
        ...


@dataclass(frozen=True)
class CoordinatorSetup:
    """Everything that a coordinator knows before a member joins."""

    run: str
    fleet: Fleet
    mechanism: Mechanism
    world: EmulatedWorld
    steps: Ints  # mini-batches of one local training, [N]
    members: tuple[Enrolled, ...]  # workers, and the server and the observer if there are any
    schema: str  # hash of the model's schema
    params: TestbedParams = field(default_factory=TestbedParams)
    stop: Stop = field(default_factory=Stop)
    evaluate: Evaluate = field(default_factory=Evaluate)
    recorders: Recorders = ()
    score_name: str = ACCURACY  # of the task
    least_loss: float = -math.inf  # of the task; a report below it is false
    longest_message: float = 1.0  # over `fleet.model_bytes`; more where links carry differences

    def __post_init__(self) -> None:
        """Refuse what the testbed does not support."""
        if self.mechanism.capabilities().compensates:
            raise ConfigError(
                "staleness.rule = 'compensate' is not possible in the testbed: a worker does not "
                "know where the trainings of its neighbours started; choose another rule, or use "
                "the simulator"
            )
        nodes = sorted(e.node for e in self.members if e.name != OBSERVER)
        if nodes != list(range(self.fleet.nodes)):
            raise ConfigError(
                f"members: each node from 0 to {self.fleet.nodes - 1} must be enrolled exactly "
                f"once, got {nodes}"
            )


def join_refusal(
    setup: CoordinatorSetup, member: Member | None, join: Join, remote: str = ""
) -> Reject | None:
    """Return why a join is refused; None: it is accepted.

    Args:
        setup: The coordinator's setup.
        member: The member with the name of the certificate, if there is one.
        join: Its message.
        remote: IP address that its session comes from; empty where the transport has none.
    """
    if member is None:
        return Reject("unknown", "this name is not enrolled in this run; enrol it first")
    if join.format != FORMAT:
        return Reject("format", other_format("the first message", join.format)[:200])
    if join.run not in ("", setup.run):
        return Reject("run", _wrong_run(join.run, setup.run))
    if member.state == "QUARANTINED":
        return Reject("quarantined", f"quarantined: {member.note}; the operator can lift it"[:200])
    return _enrolment_mismatch(setup, member, join) or _bad_address(setup, join.address, remote)


def _bad_address(setup: CoordinatorSetup, address: str, remote: str) -> Reject | None:
    """Refuse an address at which others must not call: another host, or none."""
    if not address or not remote:
        return None
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536 and len(port) < 6
    any_host = setup.params.addresses == "any" and _HOST.fullmatch(host)
    if is_port and (any_host or _is_same_host(host, remote)):
        return None
    what = f"address {shown(address, 64)}, but the session comes from {remote}"
    return Reject("address", f"{what}; listen there, or set testbed.addresses = any"[:200])


def _is_same_host(host: str, remote: str) -> bool:
    try:
        ours, theirs = ip_address(host), ip_address(remote)
    except ValueError:  # a name: others would have to ask a name server of the member's choice
        return False
    return ours == theirs or (ours.is_loopback and theirs.is_loopback)


def _wrong_run(theirs: str, ours: str) -> str:
    return (
        f"its checkpoint belongs to run {theirs[:16]}..., this is run {ours[:16]}...; start it "
        "with another --folder, or delete the old folder"
    )


def _enrolment_mismatch(setup: CoordinatorSetup, member: Member, join: Join) -> Reject | None:
    """Compare a join with the enrolment, so that no member can change its own weight."""
    enrolled = member.enrolled
    if join.schema != setup.schema:
        what = f"model schema {join.schema[:16]}..., expected {setup.schema[:16]}..."
        return Reject("schema", f"{what}; same model, same version of dystop?")
    if join.data_size != enrolled.data_size:
        what = f"data size {join.data_size}, enrolled were {enrolled.data_size}"
        return Reject("enrolment", f"{what}; enrol anew to change it"[:200])
    if join.label_counts != enrolled.label_counts:
        return Reject("enrolment", _label_mismatch(join.label_counts, enrolled.label_counts))
    if 0 < join.incarnation < member.incarnation:
        return Reject("replaced", "a newer process of this member is in the run")
    return None


def _label_mismatch(theirs: tuple[int, ...], enrolled: tuple[int, ...]) -> str:
    """Describe the first difference between two vectors of label counts."""
    if len(theirs) != len(enrolled):
        what = f"{len(theirs)} label counts, enrolled were {len(enrolled)}"
    else:
        label = next(k for k, (a, b) in enumerate(zip(theirs, enrolled, strict=True)) if a != b)
        what = f"{theirs[label]} samples of label {label}, enrolled were {enrolled[label]}"
    return f"{what}; enrol anew to change it"
