"""Certificates: correct, private, and refused with a helpful message."""

import os
import re
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dystop.errors import ConfigError, StorageError, TransportError
from dystop.testbed.enrolment.tokens import make_token
from dystop.testbed.security import authority
from dystop.testbed.security.files import read_register, write_register
from dystop.testbed.security.identity import names_of

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def at(moment: datetime):
    return lambda: moment


@pytest.fixture
def folder(tmp_path):
    authority.init(tmp_path, at(NOW))
    authority.issue(tmp_path, "w01", clock=at(NOW))
    return tmp_path


def refused(folder, name="w01", clock=lambda: NOW) -> str:
    with pytest.raises(TransportError) as caught:
        authority.load_identity(folder, name, clock)
    return str(caught.value)


def test_a_certificate_has_the_name_of_its_owner(folder):
    identity = authority.load_identity(folder, "w01", at(NOW))
    cert = x509.load_pem_x509_certificate(identity.cert_pem)
    assert names_of(cert) == ("w01", ["w01"])
    assert isinstance(cert.public_key().curve, ec.SECP256R1)
    assert cert.not_valid_after_utc == NOW + timedelta(days=90, minutes=5)
    assert identity.fingerprint == authority.fingerprint(identity.cert_pem)
    assert "PRIVATE" not in repr(identity)


def test_keys_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        authority.init(tmp_path)
        authority.issue(tmp_path, "w01")
    finally:
        os.umask(before)
    for file in ("ca.key", "w01.key"):
        assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".*"))  # nothing half-written is left


def test_an_authority_is_never_replaced(folder):
    with pytest.raises(ConfigError, match=rf"{folder} .*authority"):
        authority.init(folder)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(folder, mode):
    key = folder / "w01.key"
    key.chmod(mode)
    reason = refused(folder)
    assert all(fact in reason for fact in (f"{mode:04o}", f"chmod 600 {key}"))


def test_the_authority_itself_must_be_private_too(folder):
    (folder / "ca.key").chmod(0o644)
    with pytest.raises(TransportError, match="chmod 600"):
        authority.issue(folder, "w02")


@pytest.mark.parametrize("file", ["w01.key", "w01.crt", "ca.crt"])
def test_a_missing_file_is_refused(folder, file):
    (folder / file).unlink()
    reason = refused(folder)
    assert str(folder / file) in reason
    assert "missing" in reason
    assert "dystop pki issue w01" in reason


def test_an_expired_certificate_is_refused_with_its_date(folder):
    later = NOW + timedelta(days=91)
    reason = refused(folder, clock=at(later))
    assert "2031-07-30 12:05 UTC" in reason
    assert "2031-07-31" in reason  # the current time
    assert "5 minutes" in reason
    assert "dystop pki issue w01" in reason


def test_a_certificate_of_the_future_is_refused_with_its_date(folder):
    reason = refused(folder, clock=at(NOW - timedelta(minutes=6)))
    assert "not yet valid" in reason
    assert "2031-05-01 11:55 UTC" in reason
    assert "5 minutes" in reason
    authority.load_identity(
        folder, "w01", at(NOW - timedelta(minutes=4))
    )  # clocks may differ a little


def test_a_certificate_of_another_name_is_refused(folder):
    authority.issue(folder, "w02", clock=at(NOW))
    for end in ("crt", "key"):
        (folder / f"w01.{end}").write_bytes((folder / f"w02.{end}").read_bytes())
    assert re.search("'w02'.*'w01'", refused(folder))


def test_a_certificate_of_another_authority_is_refused(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    authority.init(other, at(NOW))
    authority.issue(other, "w01", clock=at(NOW))
    (folder / "w01.crt").write_bytes((other / "w01.crt").read_bytes())
    assert re.search(r"w01\.crt .*not issued by .*ca\.crt", refused(folder))


def test_a_key_that_does_not_fit_is_refused(folder):
    authority.issue(folder, "w02", clock=at(NOW))
    (folder / "w01.key").write_bytes((folder / "w02.key").read_bytes())
    assert "does not fit" in refused(folder)


@pytest.mark.parametrize("file", ["w01.key", "w01.crt", "ca.crt"])
def test_garbage_is_refused(folder, file):
    (folder / file).write_bytes(b"-----BEGIN NOTHING-----\n\0\xff")
    assert str(folder / file) in refused(folder)


@pytest.mark.parametrize(
    "name", ["", "../w01", "/etc/passwd", "W01", "w 1", "w\0", "w" * 65, "ä", ".", "w01\n", "w/1"]
)
def test_names_cannot_lead_out_of_the_folder(folder, name):
    before = sorted(folder.parent.rglob("*"))
    for call in (
        lambda: authority.issue(folder, name),
        lambda: authority.revoke(folder, name),
        lambda: authority.load_identity(folder, name),
        lambda: make_token(folder, name),
    ):
        with pytest.raises(ConfigError, match="a-z, 0-9"):
            call()
    assert sorted(folder.parent.rglob("*")) == before


def test_the_name_of_the_authority_is_reserved(folder):
    key = (folder / "ca.key").read_bytes()
    for call in (authority.issue, make_token):
        with pytest.raises(ConfigError, match="belongs to the authority"):
            call(folder, "ca")
    assert (folder / "ca.key").read_bytes() == key


def test_links_are_not_written_through(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "file"
    outside.write_text("precious")
    (folder / "w02.key").symlink_to(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        authority.issue(folder, "w02")
    assert outside.read_text() == "precious"


def test_revoking_takes_effect_at_once(folder):
    allowed = authority.Issued(folder)
    old = authority.load_identity(folder, "w01", at(NOW)).fingerprint
    assert allowed("w01", old)
    assert not allowed("w02", old)  # the certificate of w01
    assert not allowed("w01", "0" * 64)
    assert authority.revoke(folder, "w01", at(NOW)) == [old]
    assert not allowed("w01", old)
    new = authority.issue(folder, "w01", clock=at(NOW))
    assert allowed("w01", new)
    assert not allowed("w01", old)
    assert read_register(folder / "revoked.json")[old]["date"] == "2031-05-01T12:00:00+00:00"


def test_revoking_an_unknown_name_lists_the_known_ones(folder):
    with pytest.raises(ConfigError, match=r"'w07'.*: w01"):
        authority.revoke(folder, "w07")


def test_a_renewed_certificate_leaves_the_old_one_valid_until_revoked(folder):
    old = authority.load_identity(folder, "w01", at(NOW)).fingerprint
    new = authority.issue(folder, "w01", clock=at(NOW))
    allowed = authority.Issued(folder)
    assert allowed("w01", old)
    assert allowed("w01", new)
    assert set(authority.revoke(folder, "w01")) == {old, new}


def test_a_damaged_list_is_named(folder):
    (folder / "issued.json").write_text("{")
    with pytest.raises(StorageError, match=r"issued\.json"):
        authority.Issued(folder)("w01", "")
    write_register(folder / "issued.json", {})
