"""Enrolment tokens: each works once, for one name and one day, and guessing is limited (F-8)."""

import re
import stat
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dystop.errors import TransportError
from dystop.testbed.enrolment.tokens import TOKEN_S, WINDOW_S, make_token, redeem
from dystop.testbed.security import authority
from dystop.testbed.security.identity import names_of


def at(moment: datetime):
    return lambda: moment


class FakeClock:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(tmp_path, wall):
    authority.init(tmp_path, at(datetime.fromtimestamp(wall.now, UTC)))
    return tmp_path


def request_for(name: str, key=None) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_token_works_once(home, wall):
    token = make_token(home, "w01", wall)
    assert re.fullmatch("[0-9a-f]{32}", token)
    cert = redeem(home, token, request_for("w01"), "10.0.0.1", wall)
    assert names_of(x509.load_pem_x509_certificate(cert)) == ("w01", ["w01"])
    assert authority.Issued(home)("w01", authority.fingerprint(cert))
    with pytest.raises(TransportError, match="used"):
        redeem(home, token, request_for("w01"), "10.0.0.1", wall)


def test_tokens_are_not_on_the_disk(home, wall):
    token = make_token(home, "w01", wall)
    for file in home.iterdir():
        assert token.encode() not in file.read_bytes()
    assert stat.S_IMODE((home / "tokens.json").stat().st_mode) == 0o600


def test_a_token_expires_after_a_day(home, wall):
    token = make_token(home, "w01", wall)
    wall.now += TOKEN_S + 1
    with pytest.raises(TransportError, match="expired"):
        redeem(home, token, request_for("w01"), "10.0.0.1", wall)


def test_the_request_must_be_for_the_name_of_the_token(home, wall):
    token = make_token(home, "w01", wall)
    with pytest.raises(TransportError, match="'w01'"):
        redeem(home, token, request_for("w02"), "10.0.0.1", wall)
    with pytest.raises(TransportError, match="cannot be read"):
        redeem(home, token, b"x", "10.0.0.1", wall)
    with pytest.raises(TransportError, match="P-256"):
        redeem(home, token, request_for("w01", ec.generate_private_key(ec.SECP384R1())), "a", wall)
    redeem(home, token, request_for("w01"), "10.0.0.1", wall)  # still good


def test_guessing_ends_after_five_tries(home, wall):
    token, request = make_token(home, "w01", wall), request_for("w01")
    reasons = []
    for k in range(10_000):
        with pytest.raises(TransportError) as caught:
            redeem(home, f"{k:032x}", request, "10.6.6.6", wall)
        reasons.append("too many" in str(caught.value))
    assert reasons == [False] * 5 + [True] * 9_995
    redeem(home, token, request, "10.6.6.6", wall)  # a newcomer behind the same address
    wall.now += WINDOW_S
    with pytest.raises(TransportError, match="wrong"):
        redeem(home, token, request, "10.6.6.6", wall)
