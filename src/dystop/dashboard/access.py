"""Access control: where to listen, the token, TLS, and which requests are allowed.

A page of another site in the same browser may use a foreign name that points to this machine (DNS
rebinding). The Host header has that name, so such a request is refused.
"""

import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

from dystop.dashboard.site import Reply, Request, text_reply
from dystop.errors import ConfigError

MIN_TOKEN_LENGTH = 16  # characters of a token
_EXPOSED = (
    "so others could read the runs. Use --token-file FILE (a file that only you can read, with a "
    f"token of at least {MIN_TOKEN_LENGTH} characters), --cert FILE and --key FILE; or omit "
    "--host: 127.0.0.1 is reachable from this machine only, and through 'ssh -L'"
)


@dataclass(frozen=True)
class Settings:
    """Where to listen, and which requests to allow."""

    host: str = "127.0.0.1"
    port: int = 6070
    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()  # additional host names of the page


Address = tuple[socket.AddressFamily, str]


def resolve_address(settings: Settings) -> Address:
    """Return the address to listen at; an address that others reach needs a token and TLS."""
    try:
        found = socket.getaddrinfo(settings.host or None, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {settings.host}: no address of this machine: {error}; omit it for 127.0.0.1"
        ) from None
    family, *_, address = found[0]
    here = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not here and (settings.token_file is None or settings.cert is None):
        raise ConfigError(f"--host {settings.host}: other machines can reach it, {_EXPOSED}")
    return family, str(address[0])


def _check_private(option: str, path: Path) -> Path:
    """Return the file if it exists and only its owner may read it."""
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
    """Read the token; raise ConfigError if others can read or guess it."""
    if path is None:
        return None
    try:
        token = _check_private("--token-file", path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {_why(error)}") from None
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            f"--token-file {path}: expected one word of at least {MIN_TOKEN_LENGTH} ASCII "
            "characters, as from: python -c 'import secrets; print(secrets.token_hex(16))'"
        )
    return token


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return TLS with this certificate; None where none is requested."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--cert and --key belong together: a certificate and its key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password is refused: its prompt would be easy to miss.
        context.load_cert_chain(cert, _check_private("--key", key), password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--cert {cert} --key {key}: not a certificate in PEM with its key, without a "
            f"password: {_why(error)}"
        ) from None
    return context


class Access:
    """Allows a request by its Host header and its token."""

    def __init__(self, settings: Settings, port: int, token: bytes | None, *, tls: bool) -> None:
        self._port, self._token, self._tls = port, token, tls
        names = {"localhost", "127.0.0.1", "[::1]", _bracketed(settings.host), *settings.names}
        self._hosts = frozenset(name.lower() for name in names if name)

    @property
    def _cookie(self) -> str:
        """Name of the cookie; it contains the port, because all ports of a host share cookies."""
        return f"{'__Host-' if self._tls else ''}dystop-{self._port}"

    def refusal(self, request: Request) -> Reply | None:
        """Return None if the request is allowed, else the reply that refuses it."""
        if not self._is_own_host(request):
            return text_reply(HTTPStatus.FORBIDDEN, "Unknown host name.")
        given = parse_qs(request.query).get("token", [""])[-1]
        if given and self._is_token(given):  # first, so that the token never stays in the address
            return self._set_cookie(request.path)
        if self._token is None or self._has_token(request):
            return None
        return text_reply(
            HTTPStatus.UNAUTHORIZED,
            "A token is needed: add ?token=TOKEN to the address once, or send the header "
            "Authorization: Bearer TOKEN",
            ("WWW-Authenticate", 'Bearer realm="dystop"'),
        )

    def _is_own_host(self, request: Request) -> bool:
        if len(request.hosts) != 1:
            return False
        name, port = _split(request.hosts[0].lower())
        default = 443 if self._tls else 80
        return port in (str(self._port), "" if self._port == default else None) and (
            name in self._hosts or name == _bracketed(request.local)
        )

    def _has_token(self, request: Request) -> bool:
        scheme, _, word = request.authorization.partition(" ")
        if scheme.lower() == "bearer" and self._is_token(word.strip()):
            return True
        pairs = (part.strip().partition("=") for part in request.cookie.split(";"))
        return any(
            name == self._cookie and _equal(value, self._cookie_value()) for name, _, value in pairs
        )

    def _is_token(self, given: str) -> bool:
        return self._token is not None and _equal(given, self._token.decode())

    def _cookie_value(self) -> str:
        """Return the value of the cookie, derived from the token without revealing it."""
        key = self._token or b""
        return hmac.new(key, f"dystop dashboard {self._port}".encode(), hashlib.sha256).hexdigest()

    def _set_cookie(self, path: str) -> Reply:
        """Set the cookie and redirect to the address without the token."""
        secure = "; Secure" if self._tls else ""
        cookie = f"{self._cookie}={self._cookie_value()}; Path=/; HttpOnly; SameSite=Strict{secure}"
        clean = "/" + quote(unquote(path).lstrip("/"))  # never another host
        return text_reply(
            HTTPStatus.SEE_OTHER, "Token accepted.", ("Location", clean), ("Set-Cookie", cookie)
        )


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(host: str) -> tuple[str, str]:
    """Split a Host header into name and port; an IPv6 address contains colons."""
    if host.startswith("["):
        name, _, rest = host.partition("]")
        return f"{name}]", rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port
