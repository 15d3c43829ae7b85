"""What is asked and what is answered, without any socket."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, unquote

from dystop.dashboard.index import index_view
from dystop.dashboard.library import Library
from dystop.dashboard.view import run_view

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"

ALWAYS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of every answer, errors too."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that anything depends on."""

    path: str
    query: str = ""
    hosts: tuple[str, ...] = ()  # every Host header
    local: str = ""  # the address at which it came in
    authorization: str = ""
    cookie: str = ""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: HTTPStatus
    body: bytes
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def say(status: HTTPStatus, words: str, *headers: tuple[str, str]) -> Reply:
    """An answer in words; they never hold a path or anything that was asked."""
    return Reply(status, f"{words}\n".encode(), TEXT, headers)


def page(body: bytes, kind: str = HTML) -> Reply:
    """A file of the page itself."""
    return Reply(HTTPStatus.OK, body, kind)


def values(content: dict[str, Any]) -> Reply:
    """Values for the page."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Reply(HTTPStatus.OK, text.encode(), JSON)


NOT_FOUND = say(HTTPStatus.NOT_FOUND, "There is no such page here.")
REFUSED = say(HTTPStatus.METHOD_NOT_ALLOWED, "Nothing can be changed here.", ("Allow", "GET, HEAD"))


# MERGED: What lies at which address. Names of runs are looked up in the listing, never made a path.


KINDS = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
RUN, STATIC, API_RUN, API_RUNS = "/run/", "/static/", "/api/run/", "/api/runs"


def files() -> dict[str, Reply]:
    """The files of the page, by name; nothing else is ever read for it."""
    folder = resources.files("dystop.dashboard") / "static"
    found = {}
    for file in folder.iterdir():
        kind = KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            found[file.name] = page(file.read_bytes(), kind)
    return found


class Site:
    """All pages."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._files = files()

    def answer(self, request: Request) -> Reply:
        """The page at an address."""
        path = unquote(request.path)
        if path == "/":
            return self._files["index.html"]
        if path == API_RUNS:
            return values(index_view(self.library))
        if path.startswith(STATIC):
            return self._files.get(path.removeprefix(STATIC), NOT_FOUND)
        if path.startswith(RUN):
            place = self.library.find(path.removeprefix(RUN))
            return NOT_FOUND if place is None else self._files["run.html"]
        if path.startswith(API_RUN):
            return self._run(path.removeprefix(API_RUN), request.query)
        return NOT_FOUND

    def _run(self, key: str, query: str) -> Reply:
        place = self.library.find(key)
        if place is None:
            return NOT_FOUND
        since = parse_qs(query).get("since", [""])[-1]
        follower, lock = self.library.follower(place)
        with lock:
            follower.look()
            return values(run_view(place, self.library.card(place), follower, since))
