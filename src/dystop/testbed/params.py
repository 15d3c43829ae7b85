"""The parameters of the testbed. This module imports neither torch nor sockets."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from dystop.params import param, section
from dystop.registry import BuiltIn, NameIn, Registry, options_of

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]

TRANSPORTS: Registry[Any] = Registry(
    "transport",
    "dystop.testbed.setup.transports:Launcher",
    "dystop.transports",
    BuiltIn(
        {
            "grpc": "dystop.testbed.setup.transports:Grpc",
            "memory": "dystop.testbed.setup.transports:Memory",
            "mpi": "dystop.testbed.setup.transports:Mpi",
        }
    ),
)


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of the testbed. In a wide-area network, multiply them by three."""

    heartbeat_s: Positive = param(1.0, "seconds between two heartbeats")
    suspect_s: Positive = param(3.0, "silence after which other workers do not pull from a worker")
    dead_s: Positive = param(10.0, "silence after which a worker is considered dead")
    connect_s: Positive = param(5.0, "time to open a connection")
    first_byte_s: Positive = param(5.0, "time from a request to the first byte of a model")
    progress_s: Positive = param(3.0, "time without a byte after which a pull is cut and resumed")
    away_s: Positive = param(4.0, "silence after a broken pull after which the pull fails")
    pull_s: Positive = param(5.0, "shortest time limit for the pulls of an order")
    round_s: Positive = param(10.0, "shortest wait for missing reports before a round closes")
    round_cap_s: Positive = param(
        60.0,
        "longest wait for missing reports before a round closes; it is also never longer than ten "
        "times the median of the last 20 rounds plus round_s",
    )
    gather_s: Positive = param(15.0, "longest wait for the quorum after a start")
    exclude_s: Positive = param(
        15.0, "exclusion of a link or a worker after a failure; doubles each time"
    )
    score_s: Positive = param(30.0, "longest wait of a record for the score of its round")
    report_s: Positive = param(1.0, "first pause before a report is repeated; doubles up to 10 s")


@dataclass(frozen=True)
class Guards:
    """Which models a worker accepts from a neighbour; `aggregation` says how it mixes them."""

    norm_factor: Annotated[float, Gt(1)] = param(
        10.0, "refuse a model whose norm exceeds this multiple of the recent own norms"
    )
    distance_factor: NotNegative = param(
        0.0, "refuse a model beyond this multiple of the usual distance; 0: never"
    )
    weight_cap: Annotated[float, Gt(0), Le(1)] = param(
        1.0, "largest weight of one neighbour in a row; 1: no cap (as in the paper)"
    )
    strikes: Annotated[int, Ge(1)] = param(
        3, "refused models after which the observer checks their sender"
    )
    reporters: Annotated[int, Ge(1)] = param(
        2, "number of distinct workers that must have refused those models"
    )
    window_s: Positive = param(600.0, "seconds for which a refusal counts")


@dataclass(frozen=True)
class Limits:
    """Limits on what one peer may request from another."""

    pulls: Annotated[int, Ge(1)] = param(32, "models served at once")
    pulls_per_peer: Annotated[int, Ge(1)] = param(2, "models served at once to one peer")
    messages_per_s: Annotated[int, Ge(1)] = param(
        20, "control messages accepted from one worker per second"
    )
    bytes_per_s: Annotated[int, Ge(1)] = param(
        256 * 2**10, "bytes of control messages accepted from one worker per second"
    )
    malformed: Annotated[int, Ge(1)] = param(
        10, "malformed messages per minute before a session is closed"
    )
    copies: Annotated[int, Ge(1)] = param(
        32, "public copies of others that a worker holds under topk, randomk and sign"
    )


@dataclass(frozen=True)
class TestbedParams:
    """How `dystop testbed` runs; the simulator ignores it."""

    __test__ = False  # pytest must not collect this class

    transport: Annotated[str, NameIn(TRANSPORTS)] = param(
        "grpc", "how parties are started and connected; 'dystop list transports' shows them"
    )
    host: str = param("127.0.0.1", "address on which coordinator and workers listen")
    port: Annotated[int, Ge(0), Le(65535)] = param(0, "port of the coordinator; 0: any free port")
    addresses: Literal["session", "any"] = param(
        "session",
        "where a worker may serve models: session: on the host that it joins from; any: wherever "
        "it says (address translation, names instead of IP addresses)",
    )
    devices: Literal["world", "jetson", "free"] = param(
        "world",
        "duration of a training: world: at least as in the simulator; jetson: at least as on five "
        "device classes; free: no emulation",
    )
    links: Literal["world", "free", "trace"] = param(
        "world",
        "bandwidth: world: from the channel model; free: unlimited, and everybody is in reach of "
        "everybody; trace: as recorded",
    )
    trace: str = param(
        "",
        "run folder with the recorded link rates, for links = trace",
        under={"links": ("trace",)},
    )
    time_scale: Positive = param(1.0, "real seconds per emulated second; 0.1: ten times as fast")
    quorum: Annotated[float, Gt(0), Le(1)] = param(
        1.0, "fraction of the workers that must be present before round 1"
    )
    observer: bool = param(
        True, "a separate process evaluates all models; off: no accuracy is recorded"
    )
    away: Literal["freeze", "age"] = param(
        "freeze", "staleness of an absent worker: freeze: constant; age: grows"
    )
    timeouts: Timeouts = section(Timeouts, "timeouts")
    guards: Guards = section(Guards, "which models are accepted")
    limits: Limits = section(Limits, "limits per peer")
    options: Any = options_of("transport", "parameters of the transport")
