"""The pages of the benchmarks: their commands run, their links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from bench_fixtures import call

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(page):
    for line in re.findall(r"^\$ dystop bench (.*)$", page.read_text(), re.M):
        done = call(*shlex.split(line), "startup")
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_script_is_on_the_first_page():
    text = (ROOT / "README.md").read_text()
    for script in ROOT.glob("*.py"):
        assert f"]({script.name})" in text
