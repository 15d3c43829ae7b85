"""The port where new workers exchange a token for a certificate; closed unless `--enrol` is given.

It runs in a process of its own (`dystop pki serve`), the only one that reads the authority's key.
A new worker has no certificate yet, so this port is separate from the others. It has two methods.
`Authority` returns the authority's certificate, which is public; a new worker compares its
fingerprint before it sends its token. `Enrol` takes a token and a signing request. Size, rate and
number of calls are limited before a message is read, for each address by itself: strangers who open
calls and send nothing do not keep others out.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dystop.errors import ConfigError, DystopError, TransportError
from dystop.testbed.enrolment.tokens import MAX_REQUEST_BYTES, WallClock, is_valid, redeem
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.security.authority import port_identity
from dystop.testbed.security.identity import fingerprint
from dystop.testbed.security.tls import server_only_credentials
from dystop.testbed.transport.grpc_calls import OpenCalls, Refused, Responses, ThreadPerCall
from dystop.testbed.transport.grpc_settings import SESSIONS, listen_problem, split_address

import grpc  # isort: skip

_LOG = throttled_logger(__name__)
SERVICE = "dystop.Enrol"
SHOWN_NAME = "coordinator"  # new workers compare this name before they send a token
MAX_BYTES = 2 * MAX_REQUEST_BYTES  # of a message in either direction
MAX_CALLS = 256  # open at once
OPEN_CALLS = 4  # of one address
SIGNERS = 2  # requests that are signed at once
CALLS, WINDOW_S = 20, 10.0  # limit per address and window
_MOST_ADDRESSES = 10_000
_STOP_S = 2.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,128}")


class AttemptLimiter:
    """Limits the number of calls per address and time window.

    >>> limiter = AttemptLimiter(2, 10.0, clock=lambda: 0.0)
    >>> [limiter("a"), limiter("a"), limiter("a"), limiter("b")]
    [True, True, False, True]
    """

    def __init__(
        self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._window_s, self._clock = most, window_s, clock
        self._times: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def __call__(self, address: str) -> bool:
        """Count a call and return whether it may proceed."""
        now_s = self._clock()
        with self._lock:
            times = self._times.pop(address, deque(maxlen=self._most))
            self._times[address] = times  # newest last, so that the oldest are removed first
            while len(self._times) > _MOST_ADDRESSES:
                del self._times[next(iter(self._times))]
            if len(times) == self._most and now_s - times[0] < self._window_s:
                return False
            times.append(now_s)
            return True


class EnrolService:
    """Listens for new workers from `start` to `stop`."""

    def __init__(self, folder: Path, clock: WallClock = time.time) -> None:
        """Take the folder of the authority, with its key.

        Raises:
            ConfigError: The authority's key is missing.
        """
        if not (folder / "ca.key").is_file():
            raise ConfigError(
                f"--enrol needs the authority's key, {folder / 'ca.key'}; start without --enrol "
                "and issue certificates where that key is"
            )
        self._folder, self._clock = folder, clock
        self._identity = port_identity(folder, SHOWN_NAME)
        self._limiter = AttemptLimiter(CALLS, WINDOW_S)
        self._calls, self._threads = OpenCalls(OPEN_CALLS), ThreadPerCall()
        self._signing = threading.Semaphore(SIGNERS)
        limited = [option for option in SESSIONS if "message_length" not in option[0]]
        limited += [("grpc.max_receive_message_length", MAX_BYTES)]
        self._server = grpc.server(
            self._threads, options=limited, maximum_concurrent_rpcs=MAX_CALLS
        )
        self.address = ""

    def start(self, address: str) -> "EnrolService":
        """Start to listen; raises TransportError if the address cannot be used."""
        host, _ = split_address(address)
        methods = {"Authority": self._authority, "Enrol": self._enrol}
        handlers = {name: self._calls.method(_address_of_call, f) for name, f in methods.items()}
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        try:
            port = self._server.add_secure_port(address, server_only_credentials(self._identity))
        except (RuntimeError, ValueError):
            port = 0
        if not port:
            raise TransportError(
                f"cannot listen for new workers on {address}: {listen_problem(address)}; "
                "choose another --enrol"
            )
        self._server.start()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self

    def stop(self) -> None:
        """Stop listening."""
        self._server.stop(None).wait(_STOP_S)
        self._threads.join(_STOP_S)
        self._calls.close()

    def _authority(self, requests: Iterator[bytes], context: Any) -> Responses:
        self._check_rate(_address_of_call(context))
        self._read(requests, context)
        yield self._identity.ca_pem

    def _enrol(self, requests: Iterator[bytes], context: Any) -> Responses:
        address = _address_of_call(context)
        found = _request(self._read(requests, context))
        if found is None or not is_valid(self._folder, found[0], self._clock):
            self._check_rate(address)  # a right token is good even if others share its address
        if found is None:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "not a request for a certificate")
        yield self._certificate(*found, address)

    def _certificate(self, token: str, request: bytes, address: str) -> bytes:
        """Return a new certificate for a good token; refuse any other."""
        try:
            with self._signing:
                cert = redeem(self._folder, token, request, address, self._clock)
        except TransportError as error:  # its text names no token
            _LOG.warning("enrolment from %s refused: %s", address, error)
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None
        except DystopError as error:
            _LOG.error("enrolment from %s failed: %s", address, error)
            text = "the authority failed; ask the operator"
            raise Refused(grpc.StatusCode.INTERNAL, text) from None
        _LOG.info("enrolled from %s: certificate %s", address, fingerprint(cert)[:16])
        answer = {"certificate": cert.decode(), "authority": self._identity.ca_pem.decode()}
        return json.dumps(answer).encode()

    def _check_rate(self, address: str) -> None:
        """Count a call; refuse it if its address had too many."""
        if not self._limiter(address):
            text = f"too many requests; wait {WINDOW_S:.0f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    def _read(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Return the request of a call."""
        address = _address_of_call(context)  # a call that has ended has none
        raw = self._calls.request(requests, context)
        if raw is None:
            _LOG.warning("enrolment: %s opened a call and sent no request", address)
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no request")
        return raw


def _address_of_call(context: Any) -> str:
    return address_of(context.peer())


def _request(raw: bytes) -> tuple[str, bytes] | None:
    """Return token and signing request of a message; None if it is malformed."""
    try:
        found = json.loads(raw)
        token, request = found["token"], found["request"].encode()
        fits = len(found) == 2 and len(request) <= MAX_REQUEST_BYTES and _TOKEN.fullmatch(token)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (token, request) if fits else None


def address_of(peer: str) -> str:
    """Return the address under which wrong tokens are counted, from gRPC's name of a peer.

    An IPv6 address counts as its whole /64 network, because its owner has all of that network.

    >>> address_of("ipv4:127.0.0.1:50312"), address_of("ipv6:%5B2001:db8::7%5D:50312")
    ('127.0.0.1', '2001:db8::/64')
    """
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return peer[:64]
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
