"""Requests and replies as values, and the page at each address; without any socket.

Names of runs are looked up in the listing and never become a path.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from dystop.dashboard.run_folders.curves import CurveCache
from dystop.dashboard.run_folders.files import read_bytes, report_file
from dystop.dashboard.run_folders.library import Library
from dystop.dashboard.views.index import index_view
from dystop.dashboard.views.run import round_view, run_view
from dystop.dashboard.views.study import study_view

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"

SECURITY_HEADERS = (
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
"""Headers of every reply, also of errors; a reply may have its own value of one."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that the reply depends on."""

    path: str
    query: str = ""
    hosts: tuple[str, ...] = ()  # every Host header
    local: str = ""  # the local address of the connection
    authorization: str = ""
    cookie: str = ""


@dataclass(frozen=True)
class Reply:
    """A reply."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def text_reply(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a plain-text reply; it never repeats the request."""
    return Reply(status, f"{text}\n".encode(), TEXT, headers)


def file_reply(body: bytes, content_type: str = HTML) -> Reply:
    """Return a static file."""
    return Reply(HTTPStatus.OK, body, content_type)


def json_reply(content: dict[str, Any]) -> Reply:
    """Return values as JSON."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Reply(HTTPStatus.OK, text.encode(), JSON)


NOT_FOUND = text_reply(HTTPStatus.NOT_FOUND, "There is no such page.")
METHOD_NOT_ALLOWED = text_reply(
    HTTPStatus.METHOD_NOT_ALLOWED, "This server is read-only.", ("Allow", "GET, HEAD")
)


CONTENT_TYPES = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
RUN, STATIC, API_RUN, API_RUNS = "/run/", "/static/", "/api/run/", "/api/runs"
ROUND = "/round/"
STUDY, API_STUDY = "/study/", "/api/study/"
RUN_REPORT, STUDY_REPORT = "/report/run/", "/report/study/"
REPORT_FILES = {"report.html": HTML, "results.csv": TEXT}
REPORT_POLICY = (
    "Content-Security-Policy",
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
)
"""A report has its styles and pictures inside; scripts stay forbidden."""
FIGURES = text_reply(HTTPStatus.OK, "The figures are files in the folder report/figures.")


def static_files() -> dict[str, Reply]:
    """Read the static files, by name."""
    folder = resources.files("dystop.dashboard") / "static"
    found = {}
    for file in folder.iterdir():
        content_type = CONTENT_TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            found[file.name] = file_reply(file.read_bytes(), content_type)
    return found


class Site:
    """All addresses."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._files = static_files()
        self._curves = CurveCache(library)
        self._replies: dict[str, Callable[[str, str], Reply]] = {
            STATIC: self._static,
            RUN: self._run_page,
            API_RUN: self._run,
            STUDY: self._study_page,
            API_STUDY: self._study,
            RUN_REPORT: self._run_report,
            STUDY_REPORT: self._study_report,
        }  # by prefix of the path; each gets the rest of the path, and the query

    def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        path = unquote(request.path)
        if path == "/":
            return self._files["index.html"]
        if path == API_RUNS:
            return json_reply(index_view(self.library))
        for prefix, reply in self._replies.items():
            if path.startswith(prefix):
                return reply(path.removeprefix(prefix), request.query)
        return NOT_FOUND

    def _static(self, name: str, _: str) -> Reply:
        return self._files.get(name, NOT_FOUND)

    def _run_page(self, key: str, _: str) -> Reply:
        return NOT_FOUND if self.library.find(key) is None else self._files["run.html"]

    def _study_page(self, name: str, _: str) -> Reply:
        known = name in self.library.found().groups
        return self._files["study.html"] if known else NOT_FOUND

    def _run_report(self, path: str, _: str) -> Reply:
        key, _, name = path.partition("/report/")
        location = self.library.find(key)
        return NOT_FOUND if location is None else _report(location.folder, name)

    def _study_report(self, path: str, _: str) -> Reply:
        key, _, name = path.partition("/report/")
        group = self.library.found().groups.get(key)
        return NOT_FOUND if group is None else _report(group.folder, name)

    def _run(self, key: str, query: str) -> Reply:
        location = self.library.find(key)
        if location is None:
            return self._round(*key.partition(ROUND)[::2])
        since = _since(query)
        follower, lock = self.library.follower(location)
        with lock:
            follower.update()
            return json_reply(run_view(location, self.library.files(location), follower, since))

    def _study(self, name: str, query: str) -> Reply:
        found = study_view(self.library, self._curves, name, _since(query))
        return NOT_FOUND if found is None else json_reply(found)

    def _round(self, key: str, number: str) -> Reply:
        """Return the map of one round of a run."""
        location = self.library.find(key)
        if location is None or not (number.isascii() and number.isdigit() and len(number) < 10):
            return NOT_FOUND
        _, lock = self.library.follower(location)
        with lock:  # one log is read once at a time
            found = round_view(location, self.library.files(location), int(number))
        return NOT_FOUND if found is None else json_reply(found)


def _since(query: str) -> str:
    """Return the cursor that a page sends."""
    return parse_qs(query).get("since", [""])[-1]


def _report(folder: Path, name: str) -> Reply:
    """Return a file of a report; only known names lead to a file."""
    if name == "figures/":
        return FIGURES
    path = report_file(folder, name) if name in REPORT_FILES else None
    body = None if path is None else read_bytes(path)
    if body is None:
        return NOT_FOUND
    return Reply(HTTPStatus.OK, body, REPORT_FILES[name], (REPORT_POLICY,))
