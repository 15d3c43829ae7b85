"""The pages of this package: their snippets run, their links lead somewhere, their names exist."""

import pkgutil
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "paper/README.md", *ROOT.glob("paper/docs/**/*.md")])
SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=6", "--turns", "3"]
FENCE = re.compile(r"^```console\n(.*?)^```", re.M | re.S)


def commands(page: Path) -> list[str]:
    lines = "\n".join(FENCE.findall(page.read_text())).splitlines()
    return [line[2:].split("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_followed_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in commands(page):
        program, *words = shlex.split(line)
        if program == "pip":  # test_packaging.py builds what it installs
            continue
        assert program == "dystop", line
        words += SMALL if words[0] == "atlas" and "--x" in words else []
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (line, done.output)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page.name, target)


def test_every_function_of_this_package_on_the_paper_map_exists():
    text = (ROOT / "docs/paper-map.md").read_text()
    functions = re.findall(r"`(dystop_paper\.[\w.]+)`", text)
    assert len(functions) > 10
    for name in functions:
        assert callable(pkgutil.resolve_name(name)), name


def test_every_equation_label_in_the_code_is_on_the_map():
    text = (ROOT / "docs/paper-map.md").read_text()
    for file in (ROOT / "paper/src").rglob("*.py"):
        for label in re.findall(r"\b(?:eq|alg):\w+", file.read_text()):
            assert label in text, (file.name, label)
