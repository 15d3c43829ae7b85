"""Tokens: the operator gives a new worker a token, which it exchanges for a certificate.

Enrolment is off by default; nothing listens unless it is switched on. A token has 128 random bits,
is valid once and for 24 hours, and only its hash is stored. After five wrong tokens from one
address within an hour, further wrong tokens from it are refused without being counted; a right one
is always good, because others may share the address of whoever guesses.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from dystop.errors import ConfigError, TransportError
from dystop.storage import PRIVATE
from dystop.testbed.security.authority import certify
from dystop.testbed.security.files import (
    checked_name,
    locked,
    read_register,
    write_register,
)
from dystop.testbed.security.identity import name_of_request

TOKEN_S = 24 * 3600.0
WINDOW_S, WRONG_TRIES = 3600.0, 5
MAX_REQUEST_BYTES = 16 * 2**10
_MOST_ADDRESSES = 10_000
_FILE = "tokens.json"

WallClock = Callable[[], float]  # seconds since 1970: tokens outlive processes


def make_token(folder: Path, name: str, clock: WallClock = time.time) -> str:
    """Return a token with which `name` can get its certificate, once, within 24 hours."""
    if checked_name(name) == "ca":
        raise ConfigError("the name 'ca' belongs to the authority; choose another one")
    if not (folder / "ca.key").is_file():
        raise ConfigError(f"{folder} holds no authority; run 'dystop pki init' first")
    token = secrets.token_hex(16)
    with locked(folder / _FILE):
        register = _register(folder)
        now = clock()
        register["tokens"] = {k: v for k, v in register["tokens"].items() if v["until"] > now}
        register["tokens"][_hashed(token)] = {"name": name, "until": now + TOKEN_S}
        write_register(folder / _FILE, register, PRIVATE)
    return token


def redeem(
    folder: Path, token: str, csr_pem: bytes, address: str, clock: WallClock = time.time
) -> bytes:
    """Exchange a token and a signing request for a certificate.

    Args:
        folder: Of the authority.
        token: From `make_token`; it is used up only if a certificate is returned.
        csr_pem: The signing request; its common name must be that of the token.
        address: The caller's address; wrong tokens are counted by it.
        clock: Wall time.

    Raises:
        TransportError: The token is wrong, used or expired, or the request does not match it. The
            text does not reveal which of the first three it is. After too many wrong tokens it
            says so.
    """
    with locked(folder / _FILE):
        register, now, address = _register(folder), clock(), address[:255]
        entry = _find_entry(register, token, now)
        if entry is None:
            _check_locked_out(register, address, now)
            _count_wrong(folder, register, address, now)
            raise TransportError("this token is wrong, used or expired; ask the operator for one")
        key = _checked_request(csr_pem, entry["name"])
        del register["tokens"][_hashed(token)]
        write_register(folder / _FILE, register, PRIVATE)  # before the certificate: never twice
        return certify(folder, entry["name"], key, clock=lambda: datetime.fromtimestamp(now, UTC))


def is_valid(folder: Path, token: str, clock: WallClock = time.time) -> bool:
    """Return whether a token can be redeemed now; it is not used up."""
    return _find_entry(_register(folder), token, clock()) is not None


def _register(folder: Path) -> dict[str, Any]:
    return {"tokens": {}, "wrong": {}, **read_register(folder / _FILE)}


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _find_entry(register: dict[str, Any], token: str, now: float) -> dict[str, Any] | None:
    """Return the entry of a token; all are compared, so that the time reveals nothing."""
    given, found = _hashed(token), None
    for known, entry in register["tokens"].items():
        if hmac.compare_digest(known, given) and entry["until"] > now:
            found = entry
    return found


def _check_locked_out(register: dict[str, Any], address: str, now: float) -> None:
    recent = [at for at in register["wrong"].get(address, []) if at > now - WINDOW_S]
    if len(recent) >= WRONG_TRIES:
        until = datetime.fromtimestamp(min(recent) + WINDOW_S, UTC)
        raise TransportError(
            f"too many wrong tokens from this address; try again after {until:%H:%M} UTC"
        )


def _count_wrong(folder: Path, register: dict[str, Any], address: str, now: float) -> None:
    """Count a wrong token; addresses without one for an hour are forgotten."""
    kept = {a: [t for t in at if t > now - WINDOW_S] for a, at in register["wrong"].items()}
    register["wrong"] = dict([(a, at) for a, at in kept.items() if at][-_MOST_ADDRESSES:])
    register["wrong"][address] = [*register["wrong"].get(address, []), now]
    write_register(folder / _FILE, register, PRIVATE)


def _checked_request(csr_pem: bytes, name: str) -> ec.EllipticCurvePublicKey:
    """Return the key of a signing request that is well formed and has the right name."""
    try:
        if len(csr_pem) > MAX_REQUEST_BYTES:
            raise ValueError
        request = x509.load_pem_x509_csr(csr_pem)
        valid, key = request.is_signature_valid, request.public_key()
        named = name_of_request(request)
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise TransportError("the signing request cannot be read; send a PEM one") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise TransportError("the signing request must hold a P-256 key; make a new one")
    if not valid or named != name:
        raise TransportError(
            f"the signing request is not for the name of this token; its common name must be "
            f"{name!r}"
        )
    return key
