"""Where to listen, with which secret and certificate: refused unless it is safe."""

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

from dystop.dashboard.site import Reply, Request, say
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


# MERGED: Who may come in: whoever asks for this very host, with the token where there is one.
#   Against pages of others in the same browser: a foreign name that points to this machine (DNS
#   rebinding) is refused, because the browser says which name it asked for.


class Access:
    """Decides by the headers of a request whether it is answered."""

    def __init__(self, settings: Settings, port: int, token: bytes | None, *, tls: bool) -> None:
        self._port, self._token, self._tls = port, token, tls
        names = {"localhost", "127.0.0.1", "[::1]", _bracketed(settings.host), *settings.names}
        self._hosts = frozenset(name.lower() for name in names if name)

    @property
    def _cookie(self) -> str:
        """Cookies are shared by all ports of a host; so the name has the port."""
        return f"{'__Host-' if self._tls else ''}dystop-{self._port}"

    def admit(self, request: Request) -> Reply | None:
        """None where the request may be answered, else what to say instead."""
        if not self._knows(request):
            return say(HTTPStatus.FORBIDDEN, "This name does not belong to this page.")
        given = parse_qs(request.query).get("token", [""])[-1]
        if given and self._is_token(given):  # first, so that it never stays in the address
            return self._welcome(request.path)
        if self._token is None or self._is_known(request):
            return None
        return say(
            HTTPStatus.UNAUTHORIZED,
            "A token is needed: add ?token=TOKEN to the address once, or send it as a header: "
            "Authorization: Bearer TOKEN",
            ("WWW-Authenticate", 'Bearer realm="dystop"'),
        )

    def _knows(self, request: Request) -> bool:
        if len(request.hosts) != 1:
            return False
        name, port = _split(request.hosts[0].lower())
        usual = 443 if self._tls else 80
        return port in (str(self._port), "" if self._port == usual else None) and (
            name in self._hosts or name == _bracketed(request.local)
        )

    def _is_known(self, request: Request) -> bool:
        scheme, _, word = request.authorization.partition(" ")
        if scheme.lower() == "bearer" and self._is_token(word.strip()):
            return True
        pairs = (part.strip().partition("=") for part in request.cookie.split(";"))
        return any(name == self._cookie and _equal(value, self._pass()) for name, _, value in pairs)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and _equal(given, self._token.decode())

    def _pass(self) -> str:
        """What the cookie holds: follows from the token, but does not tell it."""
        key = self._token or b""
        return hmac.new(key, f"dystop dashboard {self._port}".encode(), hashlib.sha256).hexdigest()

    def _welcome(self, path: str) -> Reply:
        """Keep the pass in a cookie, and have the token gone from the address."""
        secure = "; Secure" if self._tls else ""
        cookie = f"{self._cookie}={self._pass()}; Path=/; HttpOnly; SameSite=Strict{secure}"
        clean = "/" + quote(unquote(path).lstrip("/"))  # never the address of another host
        return say(HTTPStatus.SEE_OTHER, "Welcome.", ("Location", clean), ("Set-Cookie", cookie))


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(host: str) -> tuple[str, str]:
    """Name and port of a Host header; an IPv6 address has colons of its own."""
    if host.startswith("["):
        name, _, rest = host.partition("]")
        return f"{name}]", rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port
