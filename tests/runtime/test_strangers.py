"""Who is not wanted stays out; who hangs is noticed. Over real sockets."""

import dataclasses
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from parties import QUICK, RUN, Aside, Box, NotingDesk, NotingEar, Shelf, broken, until
from proxy import Proxy

from dystop.runtime import pki
from dystop.runtime.events import Fetch, Fetched, FetchFailed
from dystop.runtime.fetch import fetch
from dystop.runtime.identity import Identity
from dystop.runtime.messages import ModelHeader, PullRequest
from dystop.runtime.params import Timeouts
from dystop.runtime.payload import ModelParcel, Schema, digest
from dystop.runtime.transport import grpc_settings as settings
from dystop.runtime.transport.base import MAX_MESSAGE_BYTES, Patience, Shipment
from dystop.runtime.transport.gate import anyone
from dystop.runtime.transport.grpc import GrpcTransport

import grpc  # isort: skip
import numpy as np

HERE = Path(__file__).parent
NOW = PullRequest(RUN, round=1)
ANY = "127.0.0.1:0"
AT_MOST_S = 3.0  # until a stranger knows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("pki")
    pki.init(made)
    for name in ("coordinator", "w00", "w01", "w02"):
        pki.issue(made, name)
    return made


@pytest.fixture
def closing():
    made = []

    def keep(transport):
        made.append(transport)
        return transport

    yield keep
    for transport in reversed(made):
        transport.close()


def fake(folder: Path, common: str, dns: str | None, begins: int = -1, ends: int = 90) -> Identity:
    """A certificate of the right authority that `issue` would never make."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = serialization.load_pem_private_key((folder / "w01.key").read_bytes(), None)
    today = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)]))
        .issuer_name(authority.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today + timedelta(days=begins))
        .not_valid_after(today + timedelta(days=ends))
        .public_key(key.public_key())
    )
    if dns is not None:
        names = x509.SubjectAlternativeName([x509.DNSName(dns)])
        builder = builder.add_extension(names, critical=False)
    cert = builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    right = pki.load_identity(folder, "w01")
    return dataclasses.replace(right, name=common, cert_pem=cert, fingerprint=pki.fingerprint(cert))


def foreign(tmp_path: Path, name: str, ca_pem: bytes) -> Identity:
    """The same name from another authority, whose holder believes ours."""
    pki.init(tmp_path)
    pki.issue(tmp_path, name)
    return dataclasses.replace(pki.load_identity(tmp_path, name), ca_pem=ca_pem)


def stranger(kind: str, folder: Path, tmp_path: Path) -> Identity:
    ca_pem = (folder / "ca.crt").read_bytes()
    return {
        "other authority": lambda: foreign(tmp_path, "w01", ca_pem),
        "expired": lambda: fake(folder, "w01", "w01", begins=-9, ends=-1),
        "not yet valid": lambda: fake(folder, "w01", "w01", begins=1),
        "two names": lambda: fake(folder, "w01", "w02"),
        "no name": lambda: fake(folder, "w01", None),
        "odd name": lambda: fake(folder, "../w01", "../w01"),
        "not enrolled": lambda: fake(folder, "w01", "w01"),
    }[kind]()


STRANGERS = {
    "other authority": "unreachable",
    "expired": "unreachable",
    "not yet valid": "unreachable",
    "two names": "not_authorised",
    "no name": "not_authorised",
    "odd name": "not_authorised",
    "not enrolled": "not_authorised",
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_no_model(kind, folder, tmp_path, closing):
    shelf = Shelf(b"secret")
    server = closing(GrpcTransport(pki.load_identity(folder, "w00"), pki.Issued(folder)))
    served = server.serve_models(ANY, shelf)
    caller = closing(GrpcTransport(stranger(kind, folder, tmp_path), anyone))
    box, began = Box(), time.monotonic()
    error = broken(lambda: caller.pull("w00", served.address, NOW, box, QUICK, threading.Event()))
    assert time.monotonic() - began < AT_MOST_S
    assert error.code == STRANGERS[kind]
    assert shelf.asked_by == []
    assert box.header is None


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_no_session_and_are_told_why(kind, folder, tmp_path, closing):
    desk, ear = NotingDesk(), NotingEar()
    server = closing(GrpcTransport(pki.load_identity(folder, "coordinator"), pki.Issued(folder)))
    served = server.serve_control(ANY, desk)
    caller = closing(GrpcTransport(stranger(kind, folder, tmp_path), anyone))
    session = caller.open_session(served.address, ear)
    assert ear.next(AT_MOST_S) == ("closed",)
    assert served.address in ear.reason
    words = {"unreachable": "refused this certificate", "not_authorised": "certificate"}
    assert words[STRANGERS[kind]] in ear.reason
    session.stop()
    assert desk.events.empty()


def test_a_false_coordinator_is_not_believed(folder, tmp_path, closing):
    ca_pem = (folder / "ca.crt").read_bytes()
    pretenders = {
        "not of this federation": foreign(tmp_path, "coordinator", ca_pem),
        "expired": fake(folder, "coordinator", "coordinator", begins=-9, ends=-1),
        "somebody else": pki.load_identity(folder, "w02"),
    }
    for words, pretender in pretenders.items():
        desk, ear = NotingDesk(), NotingEar()
        served = closing(GrpcTransport(pretender, anyone)).serve_control(ANY, desk)
        worker = closing(GrpcTransport(pki.load_identity(folder, "w01"), anyone))
        session = worker.open_session(served.address, ear)
        assert ear.next(AT_MOST_S) == ("closed",)
        assert words in ear.reason
        session.stop()
        assert desk.events.empty()


def test_a_revoked_worker_is_cut_and_stays_out(tmp_path, closing):
    pki.init(tmp_path)
    for name in ("w00", "w01"):
        pki.issue(tmp_path, name)
    shelf = Shelf(bytes(1_000_000), bytes_per_s=200_000)
    server = closing(GrpcTransport(pki.load_identity(tmp_path, "w00"), pki.Issued(tmp_path)))
    served, box = server.serve_models(ANY, shelf), Box()
    puller = closing(GrpcTransport(pki.load_identity(tmp_path, "w01"), anyone))
    stop = threading.Event()
    running = Aside(lambda: puller.pull("w00", served.address, NOW, box, QUICK, stop))
    assert box.first.wait(5)
    pki.revoke(tmp_path, "w01")
    served.drop("w01")
    began = time.monotonic()
    assert running.broken(1.0).code == "unreachable"
    error = broken(lambda: puller.pull("w00", served.address, NOW, Box(), QUICK, stop))
    assert error.code == "not_authorised"
    assert time.monotonic() - began < 2.0


def _talk(address: str, context: ssl.SSLContext) -> str:
    """Shake hands and wait for a word, as a client of HTTP/2 does; returns the version of TLS."""
    host, port = address.rsplit(":", 1)
    raw = socket.create_connection((host, int(port)), timeout=AT_MOST_S)
    with raw, context.wrap_socket(raw, server_hostname="w00") as line:
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        if not line.recv(1):
            raise ConnectionError("closed")
        return str(line.version())


def _context(folder: Path, name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.set_alpn_protocols(["h2"])
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


@pytest.fixture
def peer(folder, closing):
    server = closing(GrpcTransport(pki.load_identity(folder, "w00"), pki.Issued(folder)))
    return server.serve_models(ANY, Shelf(b"secret"))


def test_no_certificate_no_entry(peer, folder):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _talk(peer.address, _context(folder))


def test_tls_1_2_is_refused_and_1_3_is_spoken(peer, folder):
    old = _context(folder, "w01")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _talk(peer.address, old)
    assert _talk(peer.address, _context(folder, "w01")) == "TLSv1.3"


def test_a_server_that_speaks_only_tls_1_2_is_not_talked_to(folder, closing):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "w00.crt", folder / "w00.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    said = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            try:
                said.append(context.wrap_socket(line, server_side=True).version())
            except (ssl.SSLError, ConnectionError) as error:
                said.append(type(error).__name__)
            line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        puller = closing(GrpcTransport(pki.load_identity(folder, "w01"), anyone))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        error = broken(lambda: puller.pull("w00", address, NOW, Box(), QUICK, threading.Event()))
        thread.join(AT_MOST_S)
    assert error.code == "unreachable"
    assert said in (["SSLError"], ["ConnectionResetError"])


def test_plain_text_is_refused(peer):
    with grpc.insecure_channel(peer.address) as channel, pytest.raises(grpc.RpcError) as caught:
        next(channel.unary_stream(settings.PULL)(b"{}", timeout=AT_MOST_S))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    host, port = peer.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=AT_MOST_S) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"secret" not in raw.recv(1000)


def test_garbage_over_a_good_connection_is_refused(peer, folder):
    from dystop.runtime.transport.tls import channel_credentials

    credentials = channel_credentials(pki.load_identity(folder, "w01"))
    options = settings.dialling("w00", 5.0)
    with grpc.secure_channel(peer.address, credentials, options=options) as channel:
        for raw in (b"", b"{}", b"\xff" * 1000, b'{"type":"pull_request"}', b"[" * 70_000):
            frames = list(channel.unary_stream(settings.PULL)(raw, timeout=AT_MOST_S))
            assert frames == [b'{"type":"pull_refused","code":"malformed","retry_s":0.0}']


def test_a_message_beyond_the_limit_ends_the_session(folder, closing):
    from dystop.runtime.transport.tls import channel_credentials

    desk = NotingDesk()
    server = closing(GrpcTransport(pki.load_identity(folder, "coordinator"), anyone))
    served = server.serve_control(ANY, desk)
    credentials = channel_credentials(pki.load_identity(folder, "w01"))
    options = [
        (key, -1 if key == "grpc.max_send_message_length" else value)
        for key, value in settings.dialling("coordinator", 5.0)
    ]
    with grpc.secure_channel(served.address, credentials, options=options) as channel:
        huge = iter([b"x" * (MAX_MESSAGE_BYTES + 1)])
        with pytest.raises(grpc.RpcError):
            list(channel.stream_stream(settings.SESSION)(huge, timeout=AT_MOST_S))
    assert desk.until(("closed", "w01")) == [("opened", "w01")]


def test_the_address_and_the_way_out_are_named(folder, closing):
    transport = closing(GrpcTransport(pki.load_identity(folder, "w01"), anyone))
    ear = NotingEar()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    session = transport.open_session(free, ear)
    assert ear.next(AT_MOST_S) == ("closed",)
    session.stop()
    assert free in ear.reason
    assert "nobody listens there" in ear.reason
    for bad in ("nowhere", "host:", "host:x", ":80", "host:70000", "h:٣"):
        with pytest.raises(settings.TransportError, match="write host:port"):
            transport.serve_models(bad, Shelf())
    with pytest.raises(settings.TransportError, match=r"192\.0\.2\.1:7000.*assign"):
        transport.serve_models("192.0.2.1:7000", Shelf())


def test_every_option_is_one_that_grpc_knows():
    """A misspelt option is ignored in silence, so each must occur in the library itself."""
    binary = next((Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")).read_bytes()
    known = {*settings.SERVER, *settings.dialling("w00", 5.0)}
    assert {name for name, _ in known if name.encode() + b"\0" not in binary} == set()
    assert b"grpc.no_such_option\0" not in binary
    for variable in ("GRPC_SSL_CIPHER_SUITES", "GRPC_ENABLE_FORK_SUPPORT"):
        assert os.environ[variable]
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"


# C-4 and C-5: what hangs is noticed --------------------------------------------------------------


@pytest.fixture
def child(folder):
    """A serving peer in a process of its own: 2 MB at 1 MB/s."""
    places = os.pathsep.join([str(HERE), *sys.path])
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serving_child.py"), str(folder), "w00", "2000000", "1e6"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def test_a_frozen_peer_is_noticed(child, folder, closing):
    """C-5: SIGSTOP while it sends; the kernel still answers for it."""
    address = child.stdout.readline().strip()
    puller, box = closing(GrpcTransport(pki.load_identity(folder, "w01"), anyone)), Box()
    usual = Patience()
    stop = threading.Event()
    running = Aside(lambda: puller.pull("w00", address, NOW, box, usual, stop))
    assert box.first.wait(10)
    os.kill(child.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert running.broken(6.0).code in ("timeout", "unreachable")
    assert time.monotonic() - began <= 4.0
    os.kill(child.pid, signal.SIGCONT)
    rest = Box()
    request = PullRequest(RUN, 1, version=3, offset=len(box.got))
    puller.pull("w00", address, request, rest, usual, stop)  # it is back
    assert len(box.got) + len(rest.got) == 2_000_000


SCHEMA = Schema((("w", (100_000,)),))


class Models:
    """A store with a real model, paced."""

    def __init__(self, bytes_per_s: float) -> None:
        self.vector = np.arange(SCHEMA.width, dtype=np.float32)
        self.bytes_per_s = bytes_per_s

    def asked(self, name, request):
        from concurrent.futures import Future

        parts = SCHEMA.pack(self.vector)
        header = ModelHeader(
            3, 2, 1, SCHEMA.size(), digest(parts), SCHEMA.hash, offset=request.offset
        )
        answer = Future()
        answer.set_result(Shipment(header, parts, self.bytes_per_s))
        return answer


@pytest.fixture
def wire(folder, closing):
    """A model of 400 kB that takes a second, behind a wire that can be cut."""
    models = Models(bytes_per_s=400_000)
    server = closing(GrpcTransport(pki.load_identity(folder, "w00"), anyone))
    proxy = Proxy(server.serve_models(ANY, models).address)
    yield proxy, models
    proxy.close()


def fetching(folder, closing, proxy, budget_s) -> Aside:
    puller = closing(GrpcTransport(pki.load_identity(folder, "w01"), anyone))
    action = Fetch(1, 0, "w00", proxy.address, NOW, time.monotonic() + budget_s)
    parcel = ModelParcel(SCHEMA)
    job = Aside(lambda: fetch(puller, action, lambda: parcel, Timeouts(), threading.Event()))
    assert until(lambda: parcel.received > 100_000)
    return job


@pytest.mark.parametrize("how", ["freeze", "cut"])
def test_a_wire_cut_for_three_seconds(how, wire, folder, closing):
    """C-4: the pull goes on where it was, and takes at most five seconds more."""
    proxy, models = wire
    began = time.monotonic()
    job = fetching(folder, closing, proxy, budget_s=20.0)
    proxy.freeze() if how == "freeze" else proxy.cut()
    time.sleep(3.0)
    proxy.thaw() if how == "freeze" else proxy.heal()
    done = job.result(10.0)
    assert isinstance(done, Fetched)
    assert np.array_equal(done.vector, models.vector)
    assert time.monotonic() - began <= 1.0 + 5.0 + 0.5
    if how == "cut":
        assert done.resumes >= 1
        assert done.bytes <= SCHEMA.size() * 1.05


def test_a_wire_cut_for_good(wire, folder, closing):
    """C-4: the watchdog bites after three seconds; four more, and the peer is given up."""
    proxy, _ = wire
    job = fetching(folder, closing, proxy, budget_s=60.0)
    proxy.freeze()
    began = time.monotonic()
    done = job.result(12.0)
    assert isinstance(done, FetchFailed)
    assert done.code in ("timeout", "unreachable")
    assert time.monotonic() - began <= 3.2 + 4.3
