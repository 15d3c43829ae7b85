"""Take screenshots of everything that dystop shows, and check each page in a real browser.

    python scripts/take_screenshots.py --out screenshots

Pages: README, the site, reports of a run, a comparison, a sweep and both timing laws, and the
dashboard with a study and a replayed round. Each at 1400 and 390 pixels, light and dark.

A page fails if it writes an error to the console, asks another machine for anything, is wider than
the window, has text whose contrast is below WCAG AA, or has something that the Tab key does not
reach or does not mark. The script then ends with exit code 1 and says which. It needs
`pip install playwright` and an installed Chromium (`--browser PATH`); it downloads nothing.
"""

import argparse
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page, sync_playwright

from dystop.dashboard.access import Settings
from dystop.dashboard.server import open_server

ROOT = Path(__file__).parents[1]
WIDTHS, SCHEMES = (1400, 390), ("light", "dark")
MOST_SCROLLERS = 60  # parts of a page that scroll are stops of their own
SMALL = [
    "fleet.workers=10", "world.range_m=70", "model.name=softmax",
    "stop.seconds=20", "stop.rounds=9999", "evaluate.every_s=2",
]  # fmt: skip
STUDIES = {
    "comparison": "compare --mechanisms dystop,d-psgd,sa-adfl --seeds 3",
    "sweep": "sweep --over mechanism.name=dystop,matcha --over data.phi=1.0,0.4 --seeds 2",
    "laws": "compare --mechanisms dystop,d-psgd,sa-adfl --seeds 2 --timing both",
    "run": "run",
}
SITE = {
    "site": "index.html",
    "site-tutorial": "tutorial/first-comparison.html",
    "site-mechanism": "explanation/mechanisms.html",
    "site-keys": "configuration.html",
    "site-peers": "benchmarks/peers.html",
}
README_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --page: #ffffff; --line: #d1d9e0; --link: #0969da;
  --code: #f0f1f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #f0f6fc; --page: #0d1117; --line: #3d444d;
  --link: #4493f8; --code: #1d232b; } }
body { max-width: 860px; margin: 0 auto; padding: 1.5rem 1rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
a { color: var(--link); } img { max-width: 100%; }
pre, code { background: var(--code); border-radius: 6px; } pre { padding: .8rem; overflow-x: auto; }
table { display: block; overflow-x: auto; border-collapse: collapse; font-size: .85rem; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; }
"""
"""About what code hosts give a README."""

CHECKS = (Path(__file__).parent / "page_checks.js").read_text()


@dataclass(frozen=True)
class Shown:
    """A page to look at."""

    name: str
    address: str
    settle_ms: int = 300  # until a page that loads values has drawn them
    keyboard: bool = True  # whether everything must be reachable by Tab


@dataclass
class Findings:
    """What is wrong with a page."""

    problems: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Note errors of the console, and requests that leave this machine or fail."""
        page.on("console", lambda m: m.type == "error" and self.problems.append(m.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("requestfailed", lambda r: self.problems.append(f"no answer from {r.url}"))
        page.on("request", lambda r: self._outside(r.url))

    def _outside(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1:")):
            self.problems.append(f"asks {url}")


def look(browser: Browser, shown: Shown, width: int, scheme: str, out: Path | None) -> list[str]:
    """Open a page, take its picture, and return what is wrong with it."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    try:
        page, findings = context.new_page(), Findings()
        findings.watch(page)
        page.goto(shown.address)
        page.wait_for_timeout(shown.settle_ms)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            findings.problems.append(f"is {wide} pixels wide")
        page.evaluate(CHECKS)
        findings.problems += page.evaluate("pageChecks.contrastProblems()")
        if out is not None:
            page.screenshot(path=out / f"{shown.name}-{width}-{scheme}.png", full_page=True)
        if shown.keyboard:
            findings.problems += unreachable(page)
        return findings.problems
    finally:
        context.close()


def unreachable(page: Page) -> list[str]:
    """Press Tab through a page; return what it does not reach, and what is not marked."""
    stops = page.evaluate("pageChecks.tabStops().length")
    page.evaluate("document.activeElement?.blur()")
    reached: set[int] = set()
    problems = []
    for _ in range(stops + MOST_SCROLLERS):
        if len(reached - {-1}) == stops:
            break
        page.keyboard.press("Tab")
        at = page.evaluate("pageChecks.focused()")
        if at is None:
            continue
        if not at["marked"] and at["stop"] not in reached:
            problems.append(f"the focus on {at['name']} cannot be seen")
        reached.add(at["stop"])
    missed = stops - len(reached - {-1})
    return [*problems, *([f"Tab does not reach {missed} of {stops} elements"] if missed else [])]


def make_material(folder: Path) -> None:
    """Run the studies whose pages are looked at, build the site, and render README."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in STUDIES.items():
        if not (folder / "runs" / name).exists():
            words = [sys.executable, "-m", "dystop", *command.split(), *SMALL, "--name", name]
            subprocess.run([*words, "--quiet"], cwd=folder, check=True)
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-j", "auto", "-d", folder / "doctrees"]
    subprocess.run([*sphinx, ROOT / "docs", folder / "site"], check=True)
    render_readme(folder)


def render_readme(folder: Path) -> None:
    """Write README as a page, about as a code host shows it."""
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images", dirs_exist_ok=True)
    text = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text())
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>README</title>'
    scale = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    page = f"{head}{scale}<style>{README_STYLE}</style><body>{text}"
    (folder / "README.html").write_text(page)


def pages(folder: Path, dashboard: str) -> list[Shown]:
    """Return the pages to look at."""
    runs, site = (folder / "runs").resolve(), (folder / "site").resolve()
    reports = [
        Shown(f"report-{name}", (runs / name / "report" / "report.html").as_uri())
        for name in STUDIES
    ]
    site_pages = [  # the navigation is the same on each
        Shown(name, (site / file).as_uri(), keyboard=name == "site") for name, file in SITE.items()
    ]
    return [
        Shown("readme", (folder / "README.html").resolve().as_uri()),
        *site_pages,
        *reports,
        Shown("dashboard-list", f"{dashboard}", 1500),
        Shown("dashboard-study", f"{dashboard}study/comparison", 1500),
        Shown("dashboard-sweep", f"{dashboard}study/sweep", 1500),
        Shown("dashboard-run", f"{dashboard}run/run", 1500),
        Shown("dashboard-replay", f"{dashboard}run/run#round=3", 1500),
    ]


@contextmanager
def serving(runs: Path) -> Iterator[str]:
    """Serve the dashboard inside the block; yield its address."""
    with open_server(runs, Settings(port=0)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.url()
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def started(path: str | None) -> Iterator[Browser]:
    """Start an installed Chromium inside the block."""
    found = path or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("no Chromium found; install one (Debian: apt-get install chromium) or --browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def tell(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """Take all pictures; end with 1 if a page has a problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--material", type=Path, default=Path("build/screenshots/material"))
    parser.add_argument("--only", default="", help="look at pages whose name contains this")
    parser.add_argument("--browser", help="an installed Chromium")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    make_material(given.material)
    failed = 0
    with serving(given.material / "runs") as dashboard, started(given.browser) as browser:
        for shown in pages(given.material, dashboard):
            if given.only not in shown.name:
                continue
            for width in WIDTHS:
                for scheme in SCHEMES:
                    problems = look(browser, shown, width, scheme, given.out)
                    tell(f"{shown.name} {width} {scheme}: {len(problems) or 'no'} problems")
                    for problem in dict.fromkeys(problems):
                        tell(f"  {problem}")
                    failed += bool(problems)
    sys.exit(f"{failed} pictures show a page with a problem" if failed else 0)


if __name__ == "__main__":
    main()
