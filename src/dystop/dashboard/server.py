"""HTTP, read-only: a thread per request, few at once, and none for long."""

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

from dystop.dashboard.access import Access, Settings, read_token, resolved, tls_context
from dystop.dashboard.library import Library
from dystop.dashboard.site import ALWAYS, REFUSED, RUN, Reply, Request, Site, say
from dystop.errors import ConfigError

AT_ONCE = 32  # connections
SILENCE_S, LONGEST_S = 10.0, 30.0  # without a byte, and altogether
_MOST_BODY = 64 * 1024
_FAILED = say(HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong here.")


class Handler(BaseHTTPRequestHandler):
    """One request. Connections are closed after it, so a page costs nothing between two looks."""

    server: "Server"
    timeout = SILENCE_S

    def do_GET(self) -> None:
        """Answer, or say why not."""
        self._send(self._reply())

    do_HEAD = do_GET

    def _reply(self) -> Reply:
        try:
            request = self._request()
            return self.server.door.admit(request) or self.server.site.answer(request)
        except Exception:  # whatever it is, the other pages go on
            if os.environ.get("DYSTOP_DEBUG") == "1":
                traceback.print_exc()
            return _FAILED

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        foreign = parts.scheme or parts.netloc  # meant for a proxy
        head = self.headers
        return Request(
            path="" if foreign else parts.path,
            query=parts.query,
            hosts=tuple(head.get_all("Host", [])),
            local=str(self.connection.getsockname()[0]),
            authorization=head.get("Authorization", ""),
            cookie=head.get("Cookie", ""),
        )

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in (*ALWAYS, *reply.headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in words of our own; a method that is not known is one that is not allowed."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._drain()
            self._send(REFUSED)
        else:
            self._send(say(HTTPStatus(code), "This request cannot be understood."))

    def _drain(self) -> None:
        """Take the body from the line: a connection closed over it would lose the answer."""
        length = self.headers.get("Content-Length", "")
        if length.isascii() and length.isdigit():
            self.rfile.read(min(int(length[:9]), _MOST_BODY))

    def version_string(self) -> str:
        """Name no versions."""
        return "dystop"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses may hold a token."""


class Server(ThreadingHTTPServer):
    """Listens from the moment it is made; `serve_forever` answers.

    Args:
        library: The runs to show.
        settings: Where to listen, and for whom.
    """

    request_queue_size = 64

    def __init__(self, library: Library, settings: Settings) -> None:
        token = read_token(settings.token_file)
        self._tls = tls_context(settings.cert, settings.key)
        self.address_family, address = resolved(settings)
        self.site = Site(library)
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._lines: dict[int, tuple[socket.socket, float]] = {}  # by thread, with their end
        try:
            super().__init__((address, settings.port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(_taken(settings, error)) from None
        self.settings, self.port = settings, int(self.server_address[1])
        self.door = Access(settings, self.port, token, tls=self._tls is not None)

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def url(self, key: str = "") -> str:
        """The address to open: of all runs, or of one."""
        host = (*self.settings.names, self.settings.host)[0]
        host = f"[{host}]" if ":" in host else host
        path = f"{RUN}{quote(key)}" if key else "/"
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for it, unless there are too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:  # no thread; on Ctrl-C there may be one, which makes room by itself
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread of one request."""
        me = threading.get_ident()
        self._lines[me] = request, time.monotonic() + LONGEST_S
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._lines.pop(me, None)
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer; the handshake of TLS comes first, here and not where it would keep others."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(SILENCE_S)
        wrapped = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        me = threading.get_ident()
        with wrapped as line:
            self._lines[me] = line, self._lines[me][1]
            line.do_handshake()
            super().finish_request(line, client_address)

    def service_actions(self) -> None:
        """End what has taken too long; called twice a second."""
        now_s = time.monotonic()
        for line, end_s in list(self._lines.values()):
            if now_s > end_s:
                with suppress(OSError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that break: pages are closed all the time."""
        if os.environ.get("DYSTOP_DEBUG") == "1":
            traceback.print_exc()


def _taken(settings: Settings, error: Exception) -> str:
    number = getattr(error, "errno", None)
    where = f"--host {settings.host} --port {settings.port}"
    if number == errno.EADDRINUSE:
        return (
            f"--port {settings.port}: is in use, perhaps by another dashboard; choose another "
            "--port, or --port 0 for any that is free"
        )
    if number in (errno.EACCES, errno.EPERM):
        return f"--port {settings.port}: needs the rights of root; choose one above 1023"
    return f"{where}: cannot listen there: {getattr(error, 'strerror', None) or error}"


def open_server(root: Path, settings: Settings) -> Server:
    """A server for the runs under a folder, which listens but does not answer yet."""
    return Server(Library(root), settings)
