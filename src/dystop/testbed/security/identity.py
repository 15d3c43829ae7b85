"""The identity of a party: its key and certificate, checked before anything starts.

Every error names the file, what is wrong with it and what to do. A missing file never leads to
unencrypted traffic.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from dystop.errors import TransportError
from dystop.testbed.security.files import checked_name

SKEW = timedelta(minutes=5)  # certificates start this much earlier and end this much later
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the wall time; only certificates need it."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Identity:
    """Key and certificate of a party, and the authority that it trusts."""

    name: str
    key_pem: bytes = field(repr=False)  # never in a log
    cert_pem: bytes = field(repr=False)
    ca_pem: bytes = field(repr=False)
    fingerprint: str


def fingerprint(cert_pem: bytes) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal."""
    der = x509.load_pem_x509_certificate(cert_pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def load_identity(folder: Path, name: str, clock: Clock = utc_now) -> Identity:
    """Load and check key and certificate of a party; no party starts without them."""
    checked_name(name)
    key_file, cert_file, ca_file = (folder / n for n in (f"{name}.key", f"{name}.crt", "ca.crt"))
    for file in (key_file, cert_file, ca_file):
        if not file.is_file():
            raise TransportError(
                f"{file} is missing: nothing is ever sent without TLS; run "
                f"'dystop pki issue {name}' or copy {name}.key, {name}.crt and ca.crt there"
            )
    check_private(key_file)
    key_pem, cert_pem, ca_pem = (f.read_bytes() for f in (key_file, cert_file, ca_file))
    cert, ca = parse_certificate(cert_file, cert_pem), parse_certificate(ca_file, ca_pem)
    _check_dates(cert_file, cert, clock())
    _check_dates(ca_file, ca, clock())
    _check_owner(cert_file, cert, name)
    _check_signature(cert_file, cert, ca, ca_file)
    _check_pair(key_file, key_pem, cert)
    return Identity(name, key_pem, cert_pem, ca_pem, fingerprint(cert_pem))


def names_of(cert: x509.Certificate) -> tuple[str, list[str]]:
    """Return common name and DNS names of a certificate."""
    common = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (str(common[0].value) if common else "", [])
    return (str(common[0].value) if common else "", found.get_values_for_type(x509.DNSName))


def check_private(file: Path) -> None:
    """Refuse a key that others on this machine can read."""
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if mode & 0o077:
        raise TransportError(
            f"{file} is readable by others (mode {mode:04o}); run: chmod 600 {file}"
        )


def parse_certificate(file: Path, pem: bytes) -> x509.Certificate:
    """Parse the content of a certificate file."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise TransportError(f"{file} is not a certificate; issue or copy it again") from None


def _check_dates(file: Path, cert: x509.Certificate, now: datetime) -> None:
    begins, ends = cert.not_valid_before_utc, cert.not_valid_after_utc
    clocks = f"the clock here says {now:%Y-%m-%d %H:%M} UTC; 5 minutes of difference are allowed"
    if now < begins:
        raise TransportError(
            f"{file} is not yet valid: from {begins:%Y-%m-%d %H:%M} UTC on ({clocks}); "
            "set the clock or wait"
        )
    if now > ends:
        raise TransportError(
            f"{file} has expired on {ends:%Y-%m-%d %H:%M} UTC ({clocks}); "
            f"run 'dystop pki issue {file.stem}' and start again"
        )


def _check_owner(file: Path, cert: x509.Certificate, name: str) -> None:
    common, dns = names_of(cert)
    if common != name or dns != [name]:
        raise TransportError(
            f"{file} belongs to {common[:64]!r} {dns}, not to {name!r}; "
            f"run 'dystop pki issue {name}'"
        )


def _check_signature(
    file: Path, cert: x509.Certificate, ca: x509.Certificate, ca_file: Path
) -> None:
    try:
        cert.verify_directly_issued_by(ca)
    except Exception:  # several types with the same meaning
        raise TransportError(
            f"{file} was not issued by {ca_file}; copy both from the same authority"
        ) from None


def _check_pair(key_file: Path, key_pem: bytes, cert: x509.Certificate) -> None:
    try:
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError):
        raise TransportError(f"{key_file} is not a key; issue it again") from None
    if key.public_key() != cert.public_key():
        raise TransportError(f"{key_file} does not fit its certificate; issue both again")


def name_of_request(request: x509.CertificateSigningRequest) -> str:
    """Return the only common name of a signing request; empty if there is not exactly one."""
    common = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common[0].value) if len(common) == 1 else ""
