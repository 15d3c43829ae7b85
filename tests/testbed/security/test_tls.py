"""gRPC accepts only TLS 1.3 with a certificate, and no message beyond the limits."""

import os
import socket
import ssl
import threading
from pathlib import Path

import pytest

from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES
from dystop.testbed.security import authority
from dystop.testbed.transport import grpc_settings as settings
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from support.testbed.transport_fixtures import ANY, NOW
from support.testbed.transport_parties import (
    QUICK,
    BufferSink,
    FakeModelSource,
    RecordingClientHandler,
    RecordingSessionHandler,
    broken,
)

import grpc  # isort: skip

AT_MOST_S = 3.0  # until a stranger knows


def _connect(address: str, context: ssl.SSLContext) -> str:
    """Connect like an HTTP/2 client, wait for a byte, and return the version of TLS."""
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
    server = closing(
        GrpcTransport(authority.load_identity(folder, "w00"), authority.Issued(folder))
    )
    return server.serve_models(ANY, FakeModelSource(b"secret"))


def test_a_client_without_a_certificate_is_refused(peer, folder):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _connect(peer.address, _context(folder))


def test_tls_1_2_is_refused_and_1_3_accepted(peer, folder):
    old = _context(folder, "w01")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _connect(peer.address, old)
    assert _connect(peer.address, _context(folder, "w01")) == "TLSv1.3"


def test_a_server_with_tls_1_2_only_is_refused(folder, closing):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "w00.crt", folder / "w00.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    results = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            try:
                results.append(context.wrap_socket(line, server_side=True).version())
            except (ssl.SSLError, ConnectionError) as error:
                results.append(type(error).__name__)
            line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        puller = closing(GrpcTransport(authority.load_identity(folder, "w01"), anyone))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        error = broken(
            lambda: puller.pull("w00", address, NOW, BufferSink(), QUICK, threading.Event())
        )
        thread.join(AT_MOST_S)
    assert error.code == "unreachable"
    assert results in (["SSLError"], ["ConnectionResetError"])


def test_plain_text_is_refused(peer):
    with grpc.insecure_channel(peer.address) as channel, pytest.raises(grpc.RpcError) as caught:
        next(channel.unary_stream(settings.PULL)(b"{}", timeout=AT_MOST_S))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    host, port = peer.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=AT_MOST_S) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"secret" not in raw.recv(1000)


def test_malformed_bytes_over_tls_are_refused(peer, folder):
    from dystop.testbed.security.tls import channel_credentials

    credentials = channel_credentials(authority.load_identity(folder, "w01"))
    options = settings.client_options("w00", 5.0)
    with grpc.secure_channel(peer.address, credentials, options=options) as channel:
        for raw in (b"", b"{}", b"\xff" * 1000, b'{"type":"pull_request"}', b"[" * 70_000):
            frames = list(channel.unary_stream(settings.PULL)(raw, timeout=AT_MOST_S))
            assert frames == [b'{"type":"pull_refused","code":"malformed","retry_s":0.0}']


def test_a_message_beyond_the_limit_ends_the_session(folder, closing):
    from dystop.testbed.security.tls import channel_credentials

    sessions = RecordingSessionHandler()
    server = closing(GrpcTransport(authority.load_identity(folder, "coordinator"), anyone))
    served = server.serve_control(ANY, sessions)
    credentials = channel_credentials(authority.load_identity(folder, "w01"))
    options = [
        (key, -1 if key == "grpc.max_send_message_length" else value)
        for key, value in settings.client_options("coordinator", 5.0)
    ]
    with grpc.secure_channel(served.address, credentials, options=options) as channel:
        huge = iter([b"x" * (MAX_MESSAGE_BYTES + 1)])
        with pytest.raises(grpc.RpcError):
            list(channel.stream_stream(settings.SESSION)(huge, timeout=AT_MOST_S))
    assert sessions.until(("closed", "w01")) == [("opened", "w01")]


def test_errors_name_the_address_and_what_to_do(folder, closing):
    transport = closing(GrpcTransport(authority.load_identity(folder, "w01"), anyone))
    client = RecordingClientHandler()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    session = transport.open_session(free, client)
    assert client.next(AT_MOST_S) == ("closed",)
    session.stop()
    assert free in client.reason
    assert "nothing listens there" in client.reason
    for bad in ("nowhere", "host:", "host:x", ":80", "host:70000", "h:٣"):
        with pytest.raises(settings.TransportError, match="write host:port"):
            transport.serve_models(bad, FakeModelSource())
    with pytest.raises(settings.TransportError, match=r"192\.0\.2\.1:7000.*assign"):
        transport.serve_models("192.0.2.1:7000", FakeModelSource())


def test_every_option_is_one_that_grpc_knows():
    """gRPC ignores a misspelt option silently, so each must occur in the library itself."""
    binary = next((Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")).read_bytes()
    known = {*settings.SESSIONS, *settings.MODELS, *settings.client_options("w00", 5.0)}
    assert {name for name, _ in known if name.encode() + b"\0" not in binary} == set()
    assert b"grpc.no_such_option\0" not in binary
    for variable in ("GRPC_SSL_CIPHER_SUITES", "GRPC_ENABLE_FORK_SUPPORT"):
        assert os.environ[variable]
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"
