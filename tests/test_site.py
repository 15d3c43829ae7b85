"""The site: it builds without a warning, asks nobody else for anything, and leaves nothing out."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.main import get_command

import dystop
from dystop.cli.app import _EPILOG, app
from dystop.config import every_key
from dystop.mechanisms import BUILT_IN
from dystop.record import RoundRecord
from dystop.report.data.summary import RunSummary
from dystop.types import View
from support.browser import browser_checks

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESOURCE = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|input)\b[^>]*?\s(?:src|srcset)=\"([^\"]*)\""
    r"|<(?:link|image|use)\b[^>]*?\shref=\"([^\"]*)\"|<object\b[^>]*?\sdata=\"([^\"]*)\""
)
ELSEWHERE = re.compile(r"(?:https?:)?//")
LINK = re.compile(r"<a\b[^>]*?\shref=\"([^\"]*)\"")


@pytest.mark.slow
def test_the_site(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html"]
    words = [*command, "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    for path, text in pages.items():
        check_that_resources_are_local(path, text)
    for path in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text()), path
    check_that_links_lead_somewhere(pages)
    check_that_nothing_is_left_out(tmp_path / "site")
    look_at(tmp_path / "site")


def look_at(site):
    """Open some pages in a browser, where there is one: no errors, no requests, enough contrast."""
    if (checks := browser_checks()) is None:
        return
    with checks.started(None) as browser:
        first = ("index", "benchmarks/peers", "tutorial/first-comparison", "reference/run-folder")
        for name in first:
            shown = checks.Shown(name, (site / f"{name}.html").as_uri(), keyboard=name == "index")
            for width, scheme in ((1400, "light"), (390, "dark")):
                assert checks.look(browser, shown, width, scheme, None) == [], name


def check_that_resources_are_local(path, text):
    for found in RESOURCE.finditer(text):
        address = next(filter(None, found.groups()), "")
        assert not ELSEWHERE.match(address), (path.name, address)


def check_that_links_lead_somewhere(pages):
    ids = {path: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for path, text in pages.items()}
    for path, text in pages.items():
        for address in map(unescape, LINK.findall(text)):
            if ELSEWHERE.match(address) or address.startswith(("mailto:", "javascript:")):
                continue
            file, _, anchor = unquote(address).partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), (path.name, address)
            if anchor and target in ids:
                assert anchor in ids[target], (path.name, address)


def check_that_nothing_is_left_out(site):
    def page(name):
        return (site / name).read_text()

    keys, commands = page("configuration.html"), page("reference/command-line.html")
    for key in every_key():
        assert f'id="confval-{key.name.replace("_", "-")}"' in keys.replace("_", "-"), key.name
    for name in get_command(app).commands:
        assert f"dystop {name}" in commands
    python = page("reference/python.html")
    for name in set(dystop.__all__) - {"__version__"}:
        assert f'id="dystop.{name}"' in python, name
    mechanisms = page("explanation/mechanisms.html")
    assert mechanisms.count("<math") >= len(BUILT_IN)
    for name in BUILT_IN:
        assert f'id="{name}"' in mechanisms, name
    for name, kind in (
        ("reference/run-folder", RoundRecord),
        ("reference/run-folder", RunSummary),
        ("mechanisms", View),
    ):
        for field in fields(kind):
            if field.name != "label":  # results.csv has the name of the run instead
                assert f">{field.name}<" in page(f"{name}.html"), field.name
    protocol = page("reference/protocol.html")
    for name in ("JoinOk", "Execute", "PullRequest", "Used"):
        assert f"<h3>{name}" in protocol


def test_every_exit_code_is_documented():
    text = (DOCS / "reference/command-line.md").read_text()
    for code in re.findall(r"(\d+) [a-z]", _EPILOG):
        assert f"| {code} |" in text


def test_every_environment_variable_is_documented():
    text = (DOCS / "reference/command-line.md").read_text()
    for path in (ROOT / "src").rglob("*.py"):
        code = path.read_text()
        read = re.findall(r"environ(?:\.\w+)?[\[(]\"?([A-Z_]+)", code)  # a name, or a constant
        named = dict(re.findall(r"^([A-Z_]+) = \"([A-Z_]+)\"", code, re.M))
        for name in {*read, *re.findall(r"\"(DYSTOP_[A-Z]+)\"", code)}:
            assert f"`{named.get(name, name)}`" in text, (path.name, name)


def test_every_field_of_a_run_is_documented(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    words = ["run", "data.name=synthetic", "model.name=softmax", "fleet.workers=3", "stop.rounds=1"]
    assert CliRunner().invoke(app, [*words, "--name", "one", "--no-report"]).exit_code == 0
    text = (DOCS / "reference/run-folder.md").read_text()
    for file in ("run.json", "fleet.json"):
        for name in json.loads((tmp_path / "runs/one" / file).read_text()):
            assert f"`{name}`" in text, (file, name)
    for path in (tmp_path / "runs/one").iterdir():
        if not path.name.startswith("."):
            assert f"`{path.name}" in text, path.name
