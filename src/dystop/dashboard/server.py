"""The HTTP server: read-only, one thread per request, limited in number and time."""

import errno
import os
import socket
import socketserver
import threading
import time
import traceback
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from dystop.dashboard.access import Access, Settings, read_token, resolve_address, tls_context
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.site import (
    METHOD_NOT_ALLOWED,
    RUN,
    SECURITY_HEADERS,
    Reply,
    Request,
    Site,
    text_reply,
)
from dystop.errors import ConfigError

MAX_CONNECTIONS = 32  # at the same time
IDLE_TIMEOUT_S, REQUEST_TIMEOUT_S = 10.0, 30.0  # without a byte, and in total
_MOST_BODY = 64 * 1024
_FAILED = text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error.")


class Handler(BaseHTTPRequestHandler):
    """One request; the connection is closed after it, so that an idle page costs nothing."""

    server: "Server"
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        """Send the reply to a request."""
        self._send(self._reply())

    do_HEAD = do_GET

    def _reply(self) -> Reply:
        try:
            request = self._request()
            return self.server.access.refusal(request) or self.server.site.answer(request)
        except Exception:  # one failing page must not stop the others
            if os.environ.get("DYSTOP_DEBUG") == "1":
                traceback.print_exc()
            return _FAILED

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        to_proxy = parts.scheme or parts.netloc  # addressed to a proxy
        headers = self.headers
        return Request(
            path="" if to_proxy else parts.path,
            query=parts.query,
            hosts=tuple(headers.get_all("Host", [])),
            local=str(self.connection.getsockname()[0]),
            authorization=headers.get("Authorization", ""),
            cookie=headers.get("Cookie", ""),
        )

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in (dict(SECURITY_HEADERS) | dict(reply.headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error without details; an unknown method is not allowed."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._drain()
            self._send(METHOD_NOT_ALLOWED)
        else:
            self._send(text_reply(HTTPStatus(code), "Bad request."))

    def _drain(self) -> None:
        """Read the body: closing the connection before would lose the reply."""
        length = self.headers.get("Content-Length", "")
        if length.isascii() and length.isdigit():
            self.rfile.read(min(int(length[:9]), _MOST_BODY))

    def version_string(self) -> str:
        """Return no version."""
        return "dystop"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an address may contain a token."""


class Server(ThreadingHTTPServer):
    """Listens from its creation; `serve_forever` replies.

    Args:
        library: The runs to show.
        settings: Where to listen, and which requests to allow.
    """

    request_queue_size = 64

    def __init__(self, library: Library, settings: Settings) -> None:
        token = read_token(settings.token_file)
        self._tls = tls_context(settings.cert, settings.key)
        self.address_family, address = resolve_address(settings)
        self.site = Site(library)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._connections: dict[
            int, tuple[socket.socket, float]
        ] = {}  # by thread, with the time limit
        try:
            super().__init__((address, settings.port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(_listen_error(settings, error)) from None
        self.settings, self.port = settings, int(self.server_address[1])
        self.access = Access(settings, self.port, token, tls=self._tls is not None)

    def server_bind(self) -> None:
        """Bind without a reverse DNS lookup, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def url(self, key: str = "", page: str = RUN) -> str:
        """Return the URL of the list of runs, or of one run or study."""
        host = (*self.settings.names, self.settings.host)[0]
        host = f"[{host}]" if ":" in host else host
        path = f"{page}{quote(key)}" if key else "/"
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request, or close it if there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:  # no thread; after Ctrl-C one may exist, which releases its slot itself
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle one request in its thread."""
        me = threading.get_ident()
        self._connections[me] = request, time.monotonic() + REQUEST_TIMEOUT_S
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.pop(me, None)
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Reply after the TLS handshake, which takes place in the thread of the request."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(IDLE_TIMEOUT_S)
        wrapped = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        me = threading.get_ident()
        with wrapped as secured:
            self._connections[me] = secured, self._connections[me][1]
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def service_actions(self) -> None:
        """Close connections that exceed their time limit; called twice a second."""
        now_s = time.monotonic()
        for connection, end_s in list(self._connections.values()):
            if now_s > end_s:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: browsers close pages at any time."""
        if os.environ.get("DYSTOP_DEBUG") == "1":
            traceback.print_exc()


def _listen_error(settings: Settings, error: Exception) -> str:
    number = getattr(error, "errno", None)
    where = f"--host {settings.host} --port {settings.port}"
    if number == errno.EADDRINUSE:
        return (
            f"--port {settings.port}: is in use, perhaps by another dashboard; choose another "
            "--port, or --port 0 for any that is free"
        )
    if number in (errno.EACCES, errno.EPERM):
        return f"--port {settings.port}: needs root privileges; choose a port above 1023"
    return f"{where}: cannot listen: {getattr(error, 'strerror', None) or error}"


def open_server(root: Path, settings: Settings) -> Server:
    """Return a server for the runs under a folder; it listens but does not reply yet."""
    return Server(Library(root), settings)
