"""The knobs of the testbed. Free of torch and of sockets."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from dystop.params import param, section

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Aggregator = Literal["mean", "clip", "trimmed", "median", "nearest"]


@dataclass(frozen=True)
class Timeouts:
    """How long things may take before they count as failed. For a wide area, multiply by three."""

    heartbeat_s: Positive = param(1.0, "seconds between two heartbeats")
    suspect_s: Positive = param(3.0, "silence after which a worker is no longer pulled from")
    dead_s: Positive = param(10.0, "silence after which a worker no longer takes part")
    connect_s: Positive = param(5.0, "for opening a connection")
    first_byte_s: Positive = param(5.0, "from the request to the first byte of a model")
    progress_s: Positive = param(3.0, "without a byte before a pull is cut and resumed")
    away_s: Positive = param(4.0, "without a byte after a cut before a peer is given up")
    pull_s: Positive = param(5.0, "least time that the pulls of an order are given")
    round_s: Positive = param(10.0, "least time that a round is given before it closes without you")
    round_cap_s: Positive = param(600.0, "most time that a round is given")
    gather_s: Positive = param(15.0, "after a start: wait this long for half of the workers")
    exclude_s: Positive = param(15.0, "a peer that failed is not pulled from; doubles each time")
    report_s: Positive = param(1.0, "first pause before a report is repeated; doubles up to 10 s")


@dataclass(frozen=True)
class Guards:
    """What a worker accepts from a neighbour, and how it mixes."""

    aggregator: Aggregator = param(
        "mean", "mean: the paper's; clip: self-centred clipping; trimmed, median, nearest: robust"
    )
    norm_factor: Annotated[float, Gt(1)] = param(
        10.0, "a model is refused if its norm exceeds this many times the own recent ones"
    )
    distance_factor: NotNegative = param(
        0.0, "refused if farther away than this many times the usual distance; 0: never"
    )
    clip_radius: NotNegative = param(0.0, "radius of clip; 0: running median of the distances seen")
    trim: Annotated[float, Ge(0), Le(0.5)] = param(0.25, "share cut off at each end by trimmed")
    nearest: Annotated[int, Ge(1)] = param(2, "how many of the nearest models nearest keeps")
    weight_cap: Annotated[float, Gt(0), Le(1)] = param(
        1.0, "most weight that one neighbour can have in a row; 1: no cap (the paper's)"
    )
    strikes: Annotated[int, Ge(1)] = param(3, "refused models after which a worker is quarantined")
    reporters: Annotated[int, Ge(1)] = param(2, "distinct workers that must have refused them")
    window_s: Positive = param(600.0, "seconds in which the strikes must fall")


@dataclass(frozen=True)
class Limits:
    """What one peer may take of another."""

    pulls: Annotated[int, Ge(1)] = param(32, "models served at once")
    pulls_per_peer: Annotated[int, Ge(1)] = param(2, "models served at once to one peer")
    messages_per_s: Annotated[int, Ge(1)] = param(20, "control messages taken from one worker")
    malformed: Annotated[int, Ge(1)] = param(10, "bad messages in a minute before a session is cut")


@dataclass(frozen=True)
class TestbedParams:
    """How `dystop testbed` runs; the simulator does not read it."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    transport: Literal["grpc", "memory", "mpi"] = param(
        "grpc", "grpc: processes and mutual TLS; memory: threads of one process; mpi: under mpiexec"
    )
    host: str = param("127.0.0.1", "address on which coordinator and workers listen")
    port: Annotated[int, Ge(0), Le(65535)] = param(0, "port of the coordinator; 0: any free one")
    devices: Literal["world", "jetson", "free"] = param(
        "world",
        "how long a training lasts: world: as the simulator says, on top of real work; jetson: "
        "five device classes; free: as long as it takes",
    )
    links: Literal["world", "free", "trace"] = param(
        "world", "bandwidth: world: paced to the channel model; free: not; trace: of a recorded run"
    )
    trace: str = param("", "run folder whose link rates are used where links = trace")
    time_scale: Positive = param(1.0, "real seconds per emulated second; 0.1: ten times as fast")
    quorum: Annotated[float, Gt(0), Le(1)] = param(1.0, "share of workers before the first round")
    observer: bool = param(True, "a process of its own tests all models; off: no accuracy is known")
    away: Literal["freeze", "age"] = param("freeze", "staleness of a worker that is not there")
    timeouts: Timeouts = section(Timeouts, "when something counts as failed")
    guards: Guards = section(Guards, "what is accepted from a neighbour")
    limits: Limits = section(Limits, "what a peer may take")
