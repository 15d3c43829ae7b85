"""Where to listen, with which secret and certificate: refused unless it is safe."""

import ipaddress
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from dystop.errors import ConfigError

SHORTEST = 16  # characters of a token
_OTHERS = (
    "so others could read the runs. Give --token-file FILE (a file that only you can read, with a "
    f"secret of at least {SHORTEST} characters), --cert FILE and --key FILE; or leave --host out: "
    "127.0.0.1 is for this machine alone, and 'ssh -L' leads there from elsewhere"
)


@dataclass(frozen=True)
class Settings:
    """Where to listen, and for whom."""

    host: str = "127.0.0.1"
    port: int = 6070
    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()  # further names under which the page may be asked for


Address = tuple[socket.AddressFamily, str]


def resolved(settings: Settings) -> Address:
    """The address to listen at; refuses one that others reach where no token and TLS are given."""
    try:
        found = socket.getaddrinfo(settings.host or None, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {settings.host}: no address of this machine: {error}; leave it out for "
            "127.0.0.1"
        ) from None
    family, *_, address = found[0]
    here = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not here and (settings.token_file is None or settings.cert is None):
        raise ConfigError(f"--host {settings.host}: more than this machine alone, {_OTHERS}")
    return family, str(address[0])


def _private(option: str, path: Path) -> Path:
    """The file, if it is there and nobody else may read it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {path}: cannot be read: {_why(error)}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{option} {path}: not a file")
    if mode & 0o077:
        raise ConfigError(
            f"{option} {path}: others can read it (mode {stat.S_IMODE(mode):04o}); "
            f"do: chmod 600 {path}"
        )
    return path


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_token(path: Path | None) -> bytes | None:
    """The secret; refuses one that others can read or guess."""
    if path is None:
        return None
    try:
        token = _private("--token-file", path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {_why(error)}") from None
    if len(token) < SHORTEST or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            f"--token-file {path}: expected one word of at least {SHORTEST} ASCII characters, as "
            "from: python -c 'import secrets; print(secrets.token_hex(16))'"
        )
    return token


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS with this certificate; None where none is asked for."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--cert and --key go together: a certificate, and the key it is for")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password is refused: the prompt for it would be easy to miss.
        context.load_cert_chain(cert, _private("--key", key), password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--cert {cert} --key {key}: not a certificate in PEM with its key, without a "
            f"password: {_why(error)}"
        ) from None
    return context
