"""gRPC refuses peers without a valid certificate and names the reason, over real sockets."""

import dataclasses
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from dystop.testbed.security import authority
from dystop.testbed.security.identity import Identity
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from support.testbed.transport_fixtures import ANY, NOW
from support.testbed.transport_parties import (
    QUICK,
    BackgroundCall,
    BufferSink,
    FakeModelSource,
    RecordingClientHandler,
    RecordingSessionHandler,
    broken,
)

AT_MOST_S = 3.0  # until a stranger is refused


def fake(folder: Path, common: str, dns: str | None, begins: int = -1, ends: int = 90) -> Identity:
    """Make a certificate of the right authority that `issue` would refuse."""
    signer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = serialization.load_pem_private_key((folder / "w01.key").read_bytes(), None)
    today = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)]))
        .issuer_name(signer.subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today + timedelta(days=begins))
        .not_valid_after(today + timedelta(days=ends))
        .public_key(key.public_key())
    )
    if dns is not None:
        names = x509.SubjectAlternativeName([x509.DNSName(dns)])
        builder = builder.add_extension(names, critical=False)
    cert = builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    right = authority.load_identity(folder, "w01")
    return dataclasses.replace(
        right, name=common, cert_pem=cert, fingerprint=authority.fingerprint(cert)
    )


def foreign(tmp_path: Path, name: str, ca_pem: bytes) -> Identity:
    """Make an identity of another authority whose holder trusts ours."""
    authority.init(tmp_path)
    authority.issue(tmp_path, name)
    return dataclasses.replace(authority.load_identity(tmp_path, name), ca_pem=ca_pem)


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
    source = FakeModelSource(b"secret")
    server = closing(
        GrpcTransport(authority.load_identity(folder, "w00"), authority.Issued(folder))
    )
    served = server.serve_models(ANY, source)
    caller = closing(GrpcTransport(stranger(kind, folder, tmp_path), anyone))
    sink, began = BufferSink(), time.monotonic()
    error = broken(lambda: caller.pull("w00", served.address, NOW, sink, QUICK, threading.Event()))
    assert time.monotonic() - began < AT_MOST_S
    assert error.code == STRANGERS[kind]
    assert source.requests == []
    assert sink.header is None


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_no_session_but_a_reason(kind, folder, tmp_path, closing):
    sessions, client = RecordingSessionHandler(), RecordingClientHandler()
    server = closing(
        GrpcTransport(authority.load_identity(folder, "coordinator"), authority.Issued(folder))
    )
    served = server.serve_control(ANY, sessions)
    caller = closing(GrpcTransport(stranger(kind, folder, tmp_path), anyone))
    session = caller.open_session(served.address, client)
    assert client.next(AT_MOST_S) == ("closed",)
    assert served.address in client.reason
    assert "certificate" in client.reason
    assert STRANGERS[kind] == "not_authorised" or "refused" in client.reason
    session.stop()
    assert sessions.events.empty()


def test_a_false_coordinator_gets_no_session(folder, tmp_path, closing):
    ca_pem = (folder / "ca.crt").read_bytes()
    pretenders = {
        "not from this authority": foreign(tmp_path, "coordinator", ca_pem),
        "expired": fake(folder, "coordinator", "coordinator", begins=-9, ends=-1),
        "another name": authority.load_identity(folder, "w02"),
    }
    for words, pretender in pretenders.items():
        sessions, client = RecordingSessionHandler(), RecordingClientHandler()
        served = closing(GrpcTransport(pretender, anyone)).serve_control(ANY, sessions)
        worker = closing(GrpcTransport(authority.load_identity(folder, "w01"), anyone))
        session = worker.open_session(served.address, client)
        assert client.next(AT_MOST_S) == ("closed",)
        assert words in client.reason
        session.stop()
        assert sessions.events.empty()


def test_a_revoked_worker_loses_its_pulls_and_gets_no_new_ones(tmp_path, closing):
    authority.init(tmp_path)
    for name in ("w00", "w01"):
        authority.issue(tmp_path, name)
    source = FakeModelSource(bytes(1_000_000), bytes_per_s=200_000)
    server = closing(
        GrpcTransport(authority.load_identity(tmp_path, "w00"), authority.Issued(tmp_path))
    )
    served, sink = server.serve_models(ANY, source), BufferSink()
    puller = closing(GrpcTransport(authority.load_identity(tmp_path, "w01"), anyone))
    stop = threading.Event()
    running = BackgroundCall(lambda: puller.pull("w00", served.address, NOW, sink, QUICK, stop))
    assert sink.first.wait(30)
    authority.revoke(tmp_path, "w01")
    served.drop("w01")
    began = time.monotonic()
    assert running.broken(1.0).code == "unreachable"
    error = broken(lambda: puller.pull("w00", served.address, NOW, BufferSink(), QUICK, stop))
    assert error.code == "not_authorised"
    assert time.monotonic() - began < 2.0
