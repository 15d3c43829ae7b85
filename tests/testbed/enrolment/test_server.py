"""Enrolment with a token: the key stays local, and a token works once."""

import json
import socket
import stat
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.errors import ConfigError, TransportError
from dystop.testbed.enrolment import server
from dystop.testbed.enrolment.client import authority_at, join
from dystop.testbed.enrolment.server import CALLS, MAX_BYTES, SERVICE, EnrolService
from dystop.testbed.enrolment.tokens import TOKEN_S, WRONG_TRIES, make_token
from dystop.testbed.security.authority import (
    Issued,
    fingerprint,
    init,
    issue,
    load_identity,
    port_identity,
)
from dystop.testbed.transport import grpc_calls
from dystop.testbed.transport.grpc_settings import client_options
from support.testbed.half_open import half_open_calls
from support.testbed.tcp_proxy import Proxy
from support.testbed.transport_parties import until

import grpc  # isort: skip

ANYWHERE = "127.0.0.1:0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authority")
    init(folder)
    issue(folder, "coordinator")
    return folder


@pytest.fixture
def serve(authority):
    """Return a function that starts an enrolment server with a given clock."""
    (authority / "tokens.json").unlink(missing_ok=True)
    running = []

    def start(folder=authority, clock=time.time):
        service = EnrolService(folder, clock)
        running.append(service.start(ANYWHERE))
        return service

    yield start
    for service in running:
        service.stop()


@pytest.fixture
def ca(authority):
    return (authority / "ca.crt").read_bytes()


@pytest.fixture
def quick():
    """Check that the test takes less than three seconds."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 3.0


def refused(*words) -> str:
    with pytest.raises(TransportError) as caught:
        join(*words)
    return str(caught.value)


def call(address, ca_pem, word, message):
    with grpc.secure_channel(
        address, grpc.ssl_channel_credentials(ca_pem), client_options("coordinator", 2.0)
    ) as channel:
        return channel.unary_unary(f"/{SERVICE}/{word}")(message, timeout=3.0)


@pytest.mark.usefixtures("quick")
def test_from_the_token_to_the_certificate(tmp_path, authority, serve, ca):
    address = serve().address
    print_ = join(tmp_path / "here", "w07", make_token(authority, "w07"), ca, address)
    identity = load_identity(tmp_path / "here", "w07")
    assert identity.fingerprint == print_
    assert Issued(authority)("w07", print_)
    assert stat.S_IMODE((tmp_path / "here" / "w07.key").stat().st_mode) == 0o600
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["ca.crt", "w07.crt", "w07.key"]
    assert not (authority / "w07.key").exists()


@pytest.mark.usefixtures("quick")
def test_wrong_and_used_tokens_are_refused(tmp_path, authority, serve, ca, caplog):
    address, token = serve().address, make_token(authority, "w01")
    join(tmp_path, "w01", token, ca, address)
    before = (tmp_path / "w01.key").read_bytes()
    for word in (token, "f" * 32):
        reason = refused(tmp_path, "w01", word, ca, address)
        assert all(fact in reason for fact in (address, "wrong", "used", "expired", "operator"))
        assert word not in reason
    assert token not in caplog.text
    assert (tmp_path / "w01.key").read_bytes() == before
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.usefixtures("quick")
def test_a_token_for_another_name_is_not_used_up(tmp_path, authority, serve, ca):
    address, token = serve().address, make_token(authority, "w02")
    assert "must be 'w02'" in refused(tmp_path, "w03", token, ca, address)
    join(tmp_path, "w02", token, ca, address)


@pytest.mark.usefixtures("quick")
def test_a_token_of_yesterday(tmp_path, authority, serve, ca):
    token = make_token(authority, "w01", lambda: time.time() - TOKEN_S - 1)
    assert "expired" in refused(tmp_path, "w01", token, ca, serve().address)


@pytest.mark.usefixtures("quick")
def test_an_address_that_guesses_is_locked_out_but_for_a_right_token(
    tmp_path, authority, serve, ca
):
    address, token = serve().address, make_token(authority, "w01")
    for _ in range(WRONG_TRIES):
        assert "wrong" in refused(tmp_path, "w01", "guess", ca, address)
    assert "too many" in refused(tmp_path, "w01", "guess", ca, address)
    join(tmp_path / "newcomer", "w01", token, ca, address)
    assert (tmp_path / "newcomer" / "w01.crt").is_file()


@pytest.mark.usefixtures("quick")
def test_the_token_is_not_sent_to_another_authority(tmp_path, authority, serve, ca):
    """A server with a certificate of another authority is refused before the token is sent."""
    other = tmp_path / "other"
    init(other)
    issue(other, "coordinator")
    address, token = serve(other).address, make_token(authority, "w01")
    assert "ca.crt" in refused(tmp_path, "w01", token, ca, address)
    with pytest.raises(TransportError, match=r"another authority.*token was not sent"):
        authority_at(address, fingerprint(ca))
    join(tmp_path / "w01", "w01", token, ca, serve().address)  # the token is still good


@pytest.mark.usefixtures("quick")
def test_a_worker_cannot_act_as_the_coordinator(tmp_path, authority, ca, monkeypatch):
    issue(authority, "w09")
    monkeypatch.setattr(server, "port_identity", lambda *_: load_identity(authority, "w09"))
    service = EnrolService(authority).start(ANYWHERE)
    try:
        assert "another name" in refused(tmp_path, "w01", "word", ca, service.address)
    finally:
        service.stop()


@pytest.mark.usefixtures("quick")
def test_the_authority_by_its_fingerprint(serve, ca):
    address = serve().address
    shown = fingerprint(ca).upper()
    assert authority_at(address, shown) == ca
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        authority_at(address, shown[:60])


@pytest.mark.usefixtures("quick")
def test_no_server_at_the_address(tmp_path, ca):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert "nothing listens there" in refused(tmp_path, "w01", "word", ca, address)
    with pytest.raises(TransportError, match="with --enrol"):
        authority_at(address, fingerprint(ca))


def test_a_server_that_never_answers(tmp_path, ca):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        for ask in (
            lambda: join(tmp_path, "w01", "word", ca, address),
            lambda: authority_at(address, fingerprint(ca)),
        ):
            began = time.monotonic()
            with pytest.raises(TransportError, match="does not answer"):
                ask()
            assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(
    "message",
    [b"", b"[]", b"{", b'{"token": 3, "request": "x"}', b"[" * 20_000, b"\xff" * 10,
     b'{"token": "\\ud800", "request": "x"}', b'{"token": "a", "request": "\\ud800"}',
     json.dumps({"token": "a", "request": "x", "more": 1}).encode(),
     json.dumps({"token": "a" * 129, "request": "x"}).encode()],
)  # fmt: skip
def test_malformed_requests_are_refused(serve, ca, message):
    with pytest.raises(grpc.RpcError) as caught:
        call(serve().address, ca, "Enrol", message)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_sizes_and_rates_are_bounded(serve, ca):
    address = serve().address
    with pytest.raises(grpc.RpcError) as caught:
        call(address, ca, "Enrol", b"x" * (MAX_BYTES + 1))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for _ in range(CALLS - 1):
        call(address, ca, "Authority", b"")
    with pytest.raises(grpc.RpcError, match="too many requests"):
        call(address, ca, "Authority", b"")


@pytest.mark.usefixtures("quick")
def test_a_right_token_is_good_behind_an_address_that_asked_too_often(
    tmp_path, authority, serve, ca
):
    address, token = serve().address, make_token(authority, "w08")
    for _ in range(CALLS):
        call(address, ca, "Authority", b"")
    assert "too many requests" in refused(tmp_path, "w08", "word", ca, address)
    join(tmp_path, "w08", token, ca, address)


@pytest.mark.usefixtures("quick")
def test_half_open_calls_of_strangers_keep_nobody_else_out(tmp_path, authority, serve, ca):
    address = serve().address
    proxy = Proxy(address, source="127.0.0.2")
    strangers = grpc.ssl_channel_credentials(ca)
    with half_open_calls(address, "coordinator", f"/{SERVICE}/Enrol", strangers, 48):
        join(tmp_path, "w07", make_token(authority, "w07"), ca, proxy.address)
    proxy.close()


@pytest.mark.usefixtures("quick")
def test_a_half_open_call_ends(serve, ca, monkeypatch, caplog):
    monkeypatch.setattr(grpc_calls, "BODY_S", 0.5)
    address = serve().address
    strangers = grpc.ssl_channel_credentials(ca)
    with half_open_calls(address, "coordinator", f"/{SERVICE}/Enrol", strangers, 4) as calls:
        assert until(lambda: all(one.done() for one in calls))
        call(address, ca, "Authority", b"")
    assert "127.0.0.1 opened a call and sent no request" in caplog.text


def test_it_needs_the_authority_and_a_free_port(tmp_path, authority, serve):
    with pytest.raises(ConfigError, match="needs the authority's key"):
        EnrolService(tmp_path)
    taken = serve().address
    with pytest.raises(TransportError, match="choose another --enrol"):
        EnrolService(authority).start(taken)


@pytest.mark.usefixtures("quick")
def test_the_commands(tmp_path, authority, serve, ca, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = serve().address

    def run(*words, **more):
        return CliRunner().invoke(app, ["pki", *map(str, words)], **more)

    made = run("token", "w01", "--folder", authority, "--out", "w01.token")
    assert fingerprint(ca) in made.output
    assert stat.S_IMODE(Path("w01.token").stat().st_mode) == 0o600
    assert Path("w01.token").read_text().strip() not in made.output
    there = ["join", "w01", "--token-file", "w01.token", "--from", address]
    for words, fact in (
        (there, "--ca-sha256"),
        ([*there, "--ca", "none.crt"], "none.crt"),
        (
            [
                "join",
                "w01",
                "--token-file",
                "none",
                "--from",
                address,
                "--ca",
                authority / "ca.crt",
            ],
            "none",
        ),
    ):
        result = run(*words)
        assert (result.exit_code, fact in result.output) == (2, True), result.output
    Path("w01.token").chmod(0o644)
    assert "chmod 600" in run(*there, "--ca", authority / "ca.crt").output
    Path("w01.token").chmod(0o600)
    result = run(*there, "--ca-sha256", fingerprint(ca))
    assert (result.exit_code, "are in pki" in result.output) == (0, True), result.output
    word = run("token", "w02", "--folder", authority).output
    there = ["join", "w02", "--token-file", "-", "--from", address, "--ca", authority / "ca.crt"]
    result = run(*there, input=word)
    assert result.exit_code == 0, result.output
    assert load_identity(Path("pki"), "w02").name == "w02"


def test_the_port_shows_a_certificate_that_opens_no_session(authority):
    shown = port_identity(authority, "coordinator")
    assert not Issued(authority)("coordinator", shown.fingerprint)
    assert shown.fingerprint != load_identity(authority, "coordinator").fingerprint
