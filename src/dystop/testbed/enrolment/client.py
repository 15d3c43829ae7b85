"""Getting a certificate over the network: what happens on the host of a new worker.

The key is created here and never leaves. The token is sent only to a coordinator whose certificate
belongs to the authority that the operator named, by its file or by its fingerprint.
"""

import hmac
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dystop.errors import ConfigError, TransportError
from dystop.storage import PRIVATE
from dystop.testbed.enrolment.server import MAX_BYTES, SERVICE, SHOWN_NAME
from dystop.testbed.security.files import checked_name, write_file
from dystop.testbed.security.identity import (
    check_private,
    fingerprint,
    load_identity,
    parse_certificate,
)
from dystop.testbed.transport.grpc_settings import client_options, explain, split_address

import grpc  # isort: skip

CONNECT_S, ANSWER_S = 2.0, 2.5
_SHA256 = re.compile(r"[0-9a-f]{64}")


def join(folder: Path, name: str, token: str, ca_pem: bytes, address: str) -> str:
    """Create a key, get a certificate for it, and write both; return the fingerprint.

    Args:
        folder: For `NAME.key`, `NAME.crt` and `ca.crt`; existing files of this name are replaced.
        name: Of this party; the token must have been made for it.
        token: From the operator (`dystop pki token`).
        ca_pem: Certificate of the authority; no other one is trusted.
        address: Of the coordinator's `--enrol`.

    Raises:
        TransportError: The coordinator cannot be reached, does not belong to that authority, or
            refused the token.
    """
    checked_name(name)
    _check_folder(folder, ca_pem)
    key = ec.generate_private_key(ec.SECP256R1())
    with _write_key_beside(folder / f"{name}.key", key) as move_into_place:
        message = {"token": token, "request": _request(key, name)}
        answer = _call(address, ca_pem, "Enrol", json.dumps(message).encode())
        cert = _certificate(answer, address)
        write_file(folder / "ca.crt", ca_pem)
        write_file(folder / f"{name}.crt", cert)
        move_into_place()
    return load_identity(folder, name).fingerprint


def read_token(source: str) -> str:
    """Read a token from a file that only its owner can read, or from standard input (`-`)."""
    if source == "-":
        return input().strip()
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"--token-file {source}: no such file; '-' reads standard input")
    check_private(path)
    return path.read_text(errors="replace").strip()


def authority_at(address: str, sha256: str) -> bytes:
    """Return the authority's certificate from the coordinator if it has this fingerprint."""
    wanted = sha256.lower().replace(":", "")
    if not _SHA256.fullmatch(wanted):
        raise ConfigError("--ca-sha256: 64 hexadecimal digits, as 'dystop pki token --out' shows")
    # Nothing is trusted yet: the answer is public, and its fingerprint is compared below.
    ca_pem = _call(address, _certificate_shown_by(address), "Authority", b"")
    try:
        found = fingerprint(ca_pem)
    except ValueError:
        raise TransportError(f"{address} is not a coordinator with --enrol") from None
    if not hmac.compare_digest(found, wanted):
        raise TransportError(
            f"{address} belongs to another authority: its fingerprint is {found[:16]}..., not "
            f"{wanted[:16]}...; compare both with the operator, the token was not sent"
        )
    return ca_pem


def _certificate_shown_by(address: str) -> bytes:
    """Return the certificate that a port shows, trusted or not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(split_address(address), CONNECT_S) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            shown = wrapped.getpeercert(binary_form=True)
    except TimeoutError:
        raise _no_answer(address) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise TransportError(
            f"cannot reach {address}: {why}; is the coordinator there, with --enrol?"
        ) from None
    return ssl.DER_cert_to_PEM_cert(shown or b"").encode()


def _call(address: str, root_pem: bytes, method: str, message: bytes) -> bytes:
    """Call one method of the coordinator; trust only a certificate under `root_pem`."""
    split_address(address)
    options = [
        *client_options(SHOWN_NAME, 2 * ANSWER_S),
        ("grpc.max_receive_message_length", MAX_BYTES),
    ]
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(root_pem), options) as channel:
        try:
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(message, timeout=ANSWER_S)
        except grpc.RpcError as error:
            raise _to_transport_error(error, address) from None
    return answer


def _to_transport_error(error: Any, address: str) -> TransportError:
    code = error.code()
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _no_answer(address)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return TransportError(f"{address} does not accept new workers; give the address of --enrol")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED):
        return TransportError(explain(error, address))
    return TransportError(f"{address} refused: {str(error.details())[:200]}")


def _no_answer(address: str) -> TransportError:
    return TransportError(
        f"{address} does not answer; check host, port and firewall, and that the coordinator runs "
        "with --enrol"
    )


def _certificate(answer: bytes, address: str) -> bytes:
    try:
        cert: bytes = json.loads(answer)["certificate"].encode()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise TransportError(f"{address} sent no certificate; ask for a new token") from None
    return cert


def _request(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """Return a signing request for this name."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _check_folder(folder: Path, ca_pem: bytes) -> None:
    """Refuse a folder that belongs to another authority."""
    parse_certificate(Path("--ca"), ca_pem)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    here = folder / "ca.crt"
    if here.is_file() and fingerprint(here.read_bytes()) != fingerprint(ca_pem):
        raise ConfigError(f"{here} belongs to another authority; choose another --folder")


@contextmanager
def _write_key_beside(path: Path, key: ec.EllipticCurvePrivateKey) -> Iterator[Any]:
    """Write a key beside its place first, so that a full disk does not use up the token."""
    aside = path.with_suffix(".key.new")
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_file(aside, pem, PRIVATE)
    try:
        yield lambda: os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
