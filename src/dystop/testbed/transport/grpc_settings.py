"""Options of gRPC, and what its errors mean.

gRPC ignores a misspelt option silently, so tests check the effect of each. Without
`ping_timeout_ms` keepalive does not notice a frozen process. Without the two ping settings of the
server it would close idle connections whose clients send pings.
"""

import socket
from typing import Any

from dystop.errors import TransportError
from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES
from dystop.testbed.protocol.messages import RejectCode
from dystop.testbed.security import tls  # before grpc, because it sets its environment

import grpc  # isort: skip

assert tls  # imported because it sets the environment of gRPC

SESSION, PULL = "/dystop.Control/Session", "/dystop.Peer/Pull"
WELCOME = (("dystop", "welcome"),)  # metadata of an accepted session; a refusal has none
PING_MS = 3000
MODEL_PING_MS = 20_000  # keepalive replies may queue behind a model; a watchdog detects stalls
Options = list[tuple[str, Any]]


def _ping_timeout(within_ms: int) -> Options:
    """Return the options for how soon the other end must answer a ping."""
    return [("grpc.keepalive_timeout_ms", within_ms), ("grpc.http2.ping_timeout_ms", within_ms)]


_BOTH: Options = [
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
_SERVER: Options = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 5000),
]
SESSIONS: Options = [*_SERVER, *_ping_timeout(PING_MS)]
MODELS: Options = [*_SERVER, *_ping_timeout(MODEL_PING_MS)]
_CLIENT: Options = [
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.client_idle_timeout_ms", 30_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]

_CODES: dict[Any, RejectCode] = {
    grpc.StatusCode.PERMISSION_DENIED: "not_authorised",
    grpc.StatusCode.UNAUTHENTICATED: "not_authorised",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "busy",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.UNIMPLEMENTED: "malformed",
}
_CAUSES = (
    ("Connection refused", "nothing listens there; start it first, or correct the address"),
    ("Name or service not known", "the host name is unknown; correct the address"),
    ("DNS resolution failed", "the host name is unknown; correct the address"),
    ("Hostname Verification", "its certificate has another name; correct the address"),
    ("not in peer certificate", "its certificate has another name; correct the address"),
    ("certificate has expired", "its certificate has expired; renew it with 'dystop pki issue'"),
    ("certificate is not yet valid", "its certificate is not yet valid; compare the clocks"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not from this authority; compare ca.crt"),
    ("certificate signature", "its certificate is not from this authority; compare ca.crt"),
    ("handshake", "it refused this certificate, or it does not support TLS 1.3"),
    ("timed out", "it does not answer; check host, network and firewall"),
    ("Socket closed", "it closed the connection: it refused this certificate, or it stopped"),
)


def client_options(name: str, connect_s: float, alive_ms: int = PING_MS) -> Options:
    """Return the options for calling a peer whose certificate must have this name."""
    return [
        *_CLIENT,
        *_ping_timeout(alive_ms),
        ("grpc.ssl_target_name_override", name),
        ("grpc.default_authority", name),
        (
            "grpc.min_reconnect_backoff_ms",
            int(connect_s * 1000),
        ),  # how long client_options may last
    ]


def reject_code(error: Any) -> RejectCode:
    """Return the reject code of a pull whose call failed with this error."""
    return _CODES.get(error.code(), "unreachable")


def explain(error: Any, address: str) -> str:
    """Return one line: the address, what is wrong, what to do."""
    details = str(error.details() or "")
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        return f"{address} refused: {details[:200]}"
    if error.code() == grpc.StatusCode.ABORTED:
        return details[:200]
    for sign, cause in _CAUSES:
        if sign in details:
            return f"cannot reach {address}: {cause}"
    return f"connection to {address} lost: {details[:200] or error.code().name.lower()}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise TransportError(
            f"address {address[:80]!r} cannot be used: write host:port, such as 127.0.0.1:7000 "
            "(port 0: any free one, where something listens)"
        )
    return host.strip("[]"), int(port)


def listen_problem(address: str) -> str:
    """Return why the system does not let us listen at an address."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "the system refused"
