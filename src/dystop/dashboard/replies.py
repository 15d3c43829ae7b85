"""What is asked and what is answered, without any socket."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

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
