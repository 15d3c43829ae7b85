"""A certificate authority for one federation: every party has its own key and certificate.

A folder holds `ca.crt`, `ca.key`, `NAME.crt` and `NAME.key` of every party, `issued.json` and
`revoked.json`. A worker on another host needs only `ca.crt` and its own two files. Certificates are
valid five minutes longer at both ends, so that clocks may differ by that much.
"""

from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dystop.errors import ConfigError
from dystop.storage import PRIVATE
from dystop.testbed.security.files import (
    checked_name,
    locked,
    read_register,
    write_file,
    write_register,
)
from dystop.testbed.security.identity import (
    SKEW,
    Clock,
    Identity,
    check_private,
    fingerprint,
    load_identity,
    parse_certificate,
    utc_now,
)

__all__ = [
    "Issued",
    "certify",
    "fingerprint",
    "init",
    "issue",
    "load_identity",
    "port_identity",
    "revoke",
]

CA_DAYS, DAYS = 3650, 90


def init(folder: Path, clock: Clock = utc_now) -> str:
    """Create the authority of a new federation and return its fingerprint.

    Refuses to replace an existing one, because all its certificates would become invalid.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / "ca.key").exists() or (folder / "ca.crt").exists():
        raise ConfigError(f"{folder} already holds an authority; choose an empty folder")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _dated(_subject("dystop-ca"), _subject("dystop-ca"), CA_DAYS, clock)
    builder = builder.public_key(key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(signs=True), critical=True)
    cert = _pem(builder.sign(key, hashes.SHA256()))
    write_file(folder / "ca.key", _key_pem(key), PRIVATE)
    write_file(folder / "ca.crt", cert)
    return fingerprint(cert)


def issue(folder: Path, name: str, days: int = DAYS, clock: Clock = utc_now) -> str:
    """Create or renew key and certificate of a party; return the new fingerprint."""
    checked_name(name)
    if name == "ca":
        raise ConfigError("the name 'ca' belongs to the authority; choose another one")
    key = ec.generate_private_key(ec.SECP256R1())
    cert = certify(folder, name, key.public_key(), days, clock)
    write_file(folder / f"{name}.key", _key_pem(key), PRIVATE)
    write_file(folder / f"{name}.crt", cert)
    return fingerprint(cert)


def certify(
    folder: Path,
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    days: int = DAYS,
    clock: Clock = utc_now,
) -> bytes:
    """Sign a certificate for a public key and register its fingerprint; return the PEM text."""
    cert = _signed(folder, name, public_key, days, clock)
    with locked(folder / "issued.json"):
        issued = read_register(folder / "issued.json")
        issued[name] = [*issued.get(name, []), fingerprint(cert)]
        write_register(folder / "issued.json", issued)
    return cert


def port_identity(folder: Path, name: str, clock: Clock = utc_now) -> Identity:
    """Return a new identity for a port of the authority.

    It shows the name that callers expect. It is on no allow list, so it opens no session.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _signed(folder, name, key.public_key(), CA_DAYS, clock)
    ca_pem = (folder / "ca.crt").read_bytes()
    return Identity(name, _key_pem(key), cert, ca_pem, fingerprint(cert))


def _signed(
    folder: Path, name: str, public_key: ec.EllipticCurvePublicKey, days: int, clock: Clock
) -> bytes:
    ca_key, ca_cert = _authority(folder)
    builder = _dated(_subject(checked_name(name)), ca_cert.subject, days, clock)
    # gRPC compares the DNS name with the name that it calls. People and other tools read the URI.
    names = [x509.DNSName(name), x509.UniformResourceIdentifier(f"urn:dystop:{name}")]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        builder.public_key(public_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
    )
    return _pem(builder.sign(ca_key, hashes.SHA256()))


def revoke(folder: Path, name: str, clock: Clock = utc_now) -> list[str]:
    """Revoke all certificates of a party; return their fingerprints."""
    issued = read_register(folder / "issued.json")
    prints: list[str] = list(issued.get(checked_name(name), []))
    if not prints:
        known = ", ".join(sorted(issued)) or "nobody"
        raise ConfigError(f"no certificate was ever issued to {name!r}; issued to: {known}")
    day = clock().isoformat(timespec="seconds")
    with locked(folder / "revoked.json"):
        revoked = read_register(folder / "revoked.json")
        revoked.update({one: revoked.get(one, {"name": name, "date": day}) for one in prints})
        write_register(folder / "revoked.json", revoked)
    return prints


class Issued:
    """The allow list of a folder: issued to that name, and not revoked. Reread after a change."""

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "issued.json", folder / "revoked.json")
        self._stamp: tuple[object, ...] = ()
        self._issued: dict[str, list[str]] = {}
        self._revoked: dict[str, object] = {}

    def __call__(self, name: str, fingerprint: str) -> bool:
        """Return whether this party may take part with this certificate."""
        stamp = tuple(_stamp(file) for file in self._files)
        if stamp != self._stamp:
            self._issued, self._revoked = (read_register(file) for file in self._files)
            self._stamp = stamp
        return fingerprint in self._issued.get(name, []) and fingerprint not in self._revoked


def _stamp(file: Path) -> object:
    """Return a value that changes when the file is replaced."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key_file, cert_file = folder / "ca.key", folder / "ca.crt"
    if not key_file.is_file() or not cert_file.is_file():
        raise ConfigError(f"{folder} holds no authority; run 'dystop pki init' first")
    check_private(key_file)
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key_file} is not a key that dystop made; make a new authority")
    return key, parse_certificate(cert_file, cert_file.read_bytes())


def _dated(
    subject: x509.Name, issuer: x509.Name, days: int, clock: Clock
) -> x509.CertificateBuilder:
    now = clock()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days) + SKEW)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
