"""Who may come in: whoever asks for this very host, with the token where there is one.

Against pages of others in the same browser: a foreign name that points to this machine (DNS
rebinding) is refused, because the browser says which name it asked for.
"""

import hashlib
import hmac
from http import HTTPStatus
from urllib.parse import parse_qs, quote, unquote

from dystop.dashboard.bind import Settings
from dystop.dashboard.replies import Reply, Request, say


class Door:
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
