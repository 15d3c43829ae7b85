"""What lies at which address. Names of runs are looked up in the listing, never made a path."""

from importlib import resources
from urllib.parse import parse_qs, unquote

from dystop.dashboard.index import index_view
from dystop.dashboard.library import Library
from dystop.dashboard.replies import HTML, NOT_FOUND, Reply, Request, page, values
from dystop.dashboard.view import run_view

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
