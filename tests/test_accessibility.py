"""Who sees little colour or has no mouse can use every page: contrast, focus, and the Tab key.

Colours are checked from the style sheets, and pages in a real browser where one is installed.
"""

import re
from pathlib import Path

import furo
import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli.app import app
from dystop.report.figures.style import RUNS
from support.browser import browser_checks

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

PACKAGE = Path(dystop.__file__).parent
DASHBOARD = PACKAGE / "dashboard" / "static"
SHEETS = {
    "dashboard": DASHBOARD / "dashboard.css",
    "report": PACKAGE / "report" / "templates" / "report.css",
}
SCHEMES = ("light", "dark")
TEXT, GRAPHICS = 4.5, 3.0  # least contrast by WCAG 2 AA


def luminance(colour):
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """Contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colours():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def colours(name, scheme):
    """Return the variables of a style sheet."""
    light, _, rest = SHEETS[name].read_text().partition("(prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        found |= dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rest.partition("* {")[0]))
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SHEETS)
def test_text_and_lines_can_be_seen(name, scheme):
    known = colours(name, scheme)
    for paper in ("page", "card"):
        for ink in ("ink", "muted", "warn", "accent", "good", "bad"):
            if ink in known:
                assert contrast(known[ink], known[paper]) >= TEXT, (ink, paper)
    for ink in ("ink", "warn"):
        assert contrast(known[ink], known["warnpage"]) >= TEXT, ink
    for line in [f"run{k}" for k in range(len(RUNS))]:
        assert contrast(known[line], known["card"]) >= GRAPHICS, line


@pytest.mark.parametrize("scheme", SCHEMES)
def test_numbers_on_the_map_and_curves_can_be_seen(scheme):
    known = colours("dashboard", scheme)
    for k in range(7):
        ink = known["onpale" if k < 4 else "ondeep"]
        assert contrast(ink, known[f"stale{k}"]) >= TEXT, k
    for line in ("own", "train", "global", "traffic", "stale", "active"):
        assert contrast(known[line], known["card"]) >= GRAPHICS, line


def test_all_pages_give_a_mechanism_the_same_colours():
    for scheme in SCHEMES:
        report, dashboard = (colours(name, scheme) for name in ("report", "dashboard"))
        for k in range(len(RUNS)):
            assert report[f"run{k}"] == dashboard[f"run{k}"]
    assert [colours("report", "light")[f"run{k}"] for k in range(len(RUNS))] == list(RUNS)


def test_text_of_the_site_can_be_seen():
    sheet = Path(furo.__file__).parent / "theme/furo/static/styles/furo.css"
    found = re.findall(r"--color-([\w-]+):(#[0-9a-f]{3,6})\b", sheet.read_text())
    light: dict[str, str] = {}
    dark: dict[str, str] = {}
    for name, value in found:
        whole = value if len(value) == 7 else "#" + "".join(2 * c for c in value[1:])
        (dark if name in light else light).setdefault(name, whole)
    for known in (light, dark):
        for ink in ("foreground-primary", "foreground-secondary", "brand-content"):
            for paper in ("background-primary", "background-secondary"):
                assert contrast(known[ink], known[paper]) >= TEXT, (ink, paper)


# The keyboard, without a browser


def sources():
    yield from DASHBOARD.glob("*.html")
    yield from DASHBOARD.glob("*.js")
    yield from (PACKAGE / "report" / "templates").glob("*.jinja")


@pytest.mark.parametrize("file", sorted(sources()), ids=lambda file: file.name)
def test_only_elements_that_the_keyboard_reaches_are_used(file):
    text = file.read_text()
    order = re.findall(r"tabindex[\"']?[=:]\s*[\"']?(-?\d+)", text)
    assert set(order) <= {"0"}, "an order of one's own misleads"
    assert not re.search(r"<(?:div|span|td|svg)\b[^>]*\bonclick", text)
    assert "accesskey" not in text


@pytest.mark.parametrize("name", SHEETS)
def test_no_style_hides_the_focus(name):
    text = SHEETS[name].read_text()
    assert not re.search(r"outline(?:-style|-width)?:\s*(?:none|0)\b", text)


def test_the_dashboard_marks_the_focus_of_all_that_can_have_it():
    rule = re.search(
        r"^(.*:focus-visible.*) \{ outline: 2px", SHEETS["dashboard"].read_text(), re.M
    )
    for element in (".chart svg", "button", "input", "a", ".scroll"):
        assert f"{element}:focus-visible" in rule[1]


# In a browser


@pytest.fixture(scope="module")
def screenshots():
    return browser_checks() or pytest.skip("no chromium, or no playwright to drive it")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("looked-at")
    small = ["data.name=synthetic", "model.name=softmax", "fleet.workers=5", "stop.rounds=6"]
    words = ["compare", "--mechanisms", "dystop,d-psgd", *small, "--out", str(out)]
    assert CliRunner().invoke(app, [*words, "--name", "trial", "--quiet"]).exit_code == 0
    return out


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_in_a_browser(screenshots, runs, width, scheme, tmp_path):
    report = (runs / "trial" / "report" / "report.html").as_uri()
    screenshots.render_readme(tmp_path)
    with screenshots.serving(runs) as home, screenshots.started(None) as browser:
        for shown in (
            screenshots.Shown("readme", (tmp_path / "README.html").as_uri()),
            screenshots.Shown("report", report),
            screenshots.Shown("list", home, 1000),
            screenshots.Shown("study", f"{home}study/trial", 1000),
            screenshots.Shown("run", f"{home}run/trial/dystop-s0", 1000),
        ):
            assert screenshots.look(browser, shown, width, scheme, None) == [], shown.name


def test_a_bad_page_is_noticed(screenshots, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<style>body{background:#fff;color:#aaa} a:focus{outline:none}</style>"
        "<div style='width:2000px'>pale</div><a href='#'>link</a>"
        "<script>console.error('oops')</script><img src='https://example.invalid/x.png'>"
    )
    with screenshots.started(None) as browser:
        shown = screenshots.Shown("bad", page.as_uri())
        found = "\n".join(screenshots.look(browser, shown, 800, "light", None))
    for fact in ("oops", "example.invalid", "pixels wide", "contrast", "cannot be seen"):
        assert fact in found


def test_a_round_is_played_by_the_keyboard(screenshots, runs):
    with screenshots.serving(runs) as home, screenshots.started(None) as browser:
        page = browser.new_page()
        page.goto(f"{home}run/trial/dystop-s0#round=1")
        page.locator("#shown", has_text="round 1 ").wait_for()
        page.focus("#play")
        page.keyboard.press("Space")
        assert page.inner_text("#play") == "Pause"
        page.locator("#shown", has_text="round 6 ").wait_for()
        page.locator("#play", has_text="Play").wait_for()
        page.focus("#round")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#shown") == "round 5 of 6"
