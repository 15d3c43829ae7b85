"""Energy: what a round costs each worker, in joules.

A worker that is present draws its compute power while it trains and its idle power for the rest of
the round. Its radio draws more on top of that while it sends or receives a model. The parameter
server is a base station on the mains and is not counted. `docs/how-to/energy.md` names the sources
of the default powers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Le

from dystop.control.time_spent import compute_seconds
from dystop.params import Choices, check_bounds, param
from dystop.plan import Links
from dystop.record import Added
from dystop.recorders.recorder import FinishedRound, Recorder, Setting
from dystop.sparse import Bools, Floats

Watts = Annotated[float, Ge(0), Le(1e6)]
FiveBoards = tuple[Watts, Watts, Watts, Watts, Watts]
_ON: dict[str, Choices] = {"enabled": None}
_SAME: dict[str, Choices] = {**_ON, "boards": ("auto", "same")}
_JETSON: dict[str, Choices] = {**_ON, "boards": ("auto", "jetson")}


@dataclass(frozen=True)
class Energy:
    """The electrical power of workers, from which records get the joules of every round."""

    enabled: bool = param(False, "whether records hold the energy of every round")
    boards: Literal["auto", "jetson", "same"] = param(
        "auto",
        "whose power: jetson: the paper's five boards, in their order; same: compute_w and idle_w "
        "for every worker; auto: jetson where world.compute.devices or testbed.devices is, else "
        "same",
        under=_ON,
    )
    compute_w: Watts = param(
        25.0,
        "power of a worker while it trains, in watts; default: Jetson Orin NX, 25 W mode",
        under=_SAME,
    )
    idle_w: Watts = param(
        5.0,
        "its power while it does not, in watts; default: half of the board's lowest mode",
        under=_SAME,
    )
    jetson_compute_w: FiveBoards = param(
        (10.0, 15.0, 25.0, 60.0, 30.0),
        "power while training of Jetson Nano, Orin Nano, Orin NX, AGX Orin and AGX Xavier, in "
        "watts; default: the vendor's highest power modes",
        under=_JETSON,
    )
    jetson_idle_w: FiveBoards = param(
        (2.5, 3.5, 5.0, 7.5, 5.0),
        "idle power of the five boards, in watts; default: half of their lowest power modes",
        under=_JETSON,
    )
    transmit_w: Watts = param(
        0.46,
        "power of the radio while it sends, on top of compute_w or idle_w, in watts",
        under=_ON,
    )
    receive_w: Watts = param(
        0.12, "power of the radio while it receives, on top, in watts", under=_ON
    )
    per_worker: bool = param(
        False, "whether records hold the energy of every worker, too", under=_ON
    )

    def __post_init__(self) -> None:
        """Raise ConfigError where a value is out of bounds."""
        check_bounds(self, "energy")


@dataclass(frozen=True)
class Power:
    """The power of each worker in watts, [N]; that of the radio comes on top."""

    compute_w: Floats
    idle_w: Floats
    transmit_w: Floats
    receive_w: Floats


def power_of(energy: Energy, workers: int, jetson: bool) -> Power:
    """Return the power of each worker.

    Args:
        energy: Section `energy` of the configuration.
        workers: N.
        jetson: Whether the fleet consists of the paper's boards, for `boards = "auto"`.
    """
    if energy.boards == "jetson" or (energy.boards == "auto" and jetson):
        from dystop.world.capacity import jetson_boards  # with all of the world

        board = jetson_boards(workers)
        compute_w = np.array(energy.jetson_compute_w)[board]
        idle_w = np.array(energy.jetson_idle_w)[board]
    else:
        compute_w, idle_w = np.full(workers, energy.compute_w), np.full(workers, energy.idle_w)
    transmit_w = np.full(workers, energy.transmit_w)
    receive_w = np.full(workers, energy.receive_w)
    return Power(compute_w, idle_w, transmit_w, receive_w)


@dataclass(frozen=True)
class RoundSeconds:
    """What the workers did in a round, in seconds, [N]. A radio may work while a worker trains."""

    compute_s: Floats  # training, at most the duration of the round
    transmit_s: Floats
    receive_s: Floats


@dataclass(frozen=True)
class RoundEnergy:
    """The energy of a round by what it was spent on, in joules, [N]."""

    compute_j: Floats
    idle_j: Floats
    transmit_j: Floats
    receive_j: Floats

    @property
    def worker_j(self) -> Floats:
        """The energy of each worker, [N]."""
        return self.compute_j + self.idle_j + self.transmit_j + self.receive_j

    def totals(self) -> dict[str, float]:
        """Return the sums over the workers by name, and `energy_j`, the sum of them all."""
        parts = {part.name: float(getattr(self, part.name).sum()) for part in fields(self)}
        return {"energy_j": sum(parts.values()), **parts}


def round_energy(
    power: Power, alive: Bools, duration_s: float, seconds: RoundSeconds
) -> RoundEnergy:
    """Return the energy of a round. A worker that is not present counts nothing.

    Args:
        power: Watts of each worker.
        alive: Who is present, [N].
        duration_s: H_t.
        seconds: What each worker did.
    """
    idle_s = duration_s - seconds.compute_s
    return RoundEnergy(
        compute_j=np.where(alive, power.compute_w * seconds.compute_s, 0.0),
        idle_j=np.where(alive, power.idle_w * idle_s, 0.0),
        transmit_j=np.where(alive, power.transmit_w * seconds.transmit_s, 0.0),
        receive_j=np.where(alive, power.receive_w * seconds.receive_s, 0.0),
    )


def radio_seconds(links: Links, link_s: Floats, workers: int) -> tuple[Floats, Floats]:
    """Return how long each worker sends and receives for the links of a round, [N] each.

    A transfer counts in the round that ordered it, whole, at both ends, also if it is lost or ends
    later. Transfers side by side add up.
    """
    sends, gets = links.src < workers, links.dst < workers  # a server is beyond the workers
    transmit_s, receive_s = np.zeros(workers), np.zeros(workers)
    np.add.at(transmit_s, links.src[sends], link_s[sends])
    np.add.at(receive_s, links.dst[gets], link_s[gets])
    return transmit_s, receive_s


@dataclass(frozen=True)
class EnergyUse(Added):
    """The energy of a round; workers that are present count."""

    energy_j: float  # joules of this round, all present workers, energy.enabled
    compute_j: float  # of it: while training
    idle_j: float  # of it: while not training
    transmit_j: float  # of it: the radios while they send
    receive_j: float  # of it: the radios while they receive
    worker_energy_j: Sequence[float] | None = None  # of each worker, energy.per_worker


@dataclass(frozen=True)
class EnergyRecorder(Recorder):
    """Adds the energy of every round."""

    group: ClassVar[type[Added]] = EnergyUse
    power: Power
    per_worker: bool = False

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """Return the recorder, where `energy.enabled` asks for it."""
        energy, jetson = setting.config.energy, setting.config.world.compute.devices == "jetson"
        if not energy.enabled:
            return None
        if setting.testbed:
            devices = setting.config.testbed.devices
            jetson = devices == "jetson" or (devices == "world" and jetson)
        return cls(power_of(energy, setting.fleet.workers, jetson), energy.per_worker)

    def record(self, memory: Any, done: FinishedRound) -> tuple[EnergyUse, Any]:
        """Return the energy of a round."""
        view, plan, outcome = done.view, done.plan, done.outcome
        compute_s = compute_seconds(done.spent, view.alive, plan.active)
        radio_s = radio_seconds(plan.links, outcome.link_s, view.fleet.workers)
        seconds = RoundSeconds(compute_s, *radio_s)
        spent = round_energy(self.power, view.alive, outcome.duration_s, seconds)
        each = np.round(spent.worker_j, 6).tolist() if self.per_worker else None
        return EnergyUse(**spent.totals(), worker_energy_j=each), memory
