"""Documentation that cannot lie: every snippet runs, every name in the paper map exists."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli.app import app
from dystop.experiments.config import read_experiment

ROOT = Path(__file__).parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*TOP, *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "stop.rounds=2",
    "fleet.workers=6",
    "evaluate.every_rounds=1",
]


def snippets(kind: str):
    for page in PAGES:
        for number, (language, body) in enumerate(FENCE.findall(page.read_text())):
            if language == kind:
                yield pytest.param(body, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("body", list(snippets("python")))
def test_python_snippets_run(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "fmnist-mini" in body:  # the README trains the CNN; a test shortens the run, nothing else
        body = body.replace("rounds=20", "rounds=2").replace("workers=30", "workers=4")
    exec(compile(body, "snippet", "exec"), {"__name__": "snippet"})


def commands():
    for page in PAGES:
        for _, body in ((k, b) for k, b in FENCE.findall(page.read_text()) if k == "console"):
            for line in body.splitlines():
                if line.startswith("$ "):
                    yield page, line[2:].split("  #")[0].strip()


def test_console_snippets_run(tmp_path, monkeypatch):
    """In order, in one folder, as a reader would type them; runs are made small by more keys."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for page, line in commands():
        program, *words = shlex.split(line)
        if program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
            continue
        assert program == "dystop", line
        if words[0] == "run" and "model.name=softmax-unit" not in words:  # that one is small
            words += [*SMALL, "--no-report"]
            if "mechanism.name=d-psgd" in words:
                words += ["--name", "d-psgd-fmnist-mini-s0"]
        if words[0] == "compare" and "--mechanisms" in words:
            words += [*SMALL, "--seeds", "2"]
        if words[0] == "sweep" and "--over" in words:
            words += SMALL
        if words[0] == "bench":
            words += ["startup"]
        if words[0] == "testbed":
            words += ["--no-report"]
            if "--resume" not in words:
                words += [*SMALL, "fleet.workers=3", "testbed.time_scale=0.01"]
                words += ["--transport", "memory"]  # processes are for test_launch.py
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (page.name, line, result.output)
        ran += 1
    assert ran >= 9


@pytest.mark.parametrize("body", list(snippets("toml")))
def test_toml_snippets_are_valid(body, tmp_path):
    tomllib.loads(body)
    file = tmp_path / "snippet.toml"
    file.write_text(body)
    read_experiment(file)


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/*.toml")), ids=lambda p: p.name)
def test_examples_are_valid(file):
    read_experiment(file)


def resolve(dotted: str):
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)


def test_paper_map_names_exist():
    text = (ROOT / "docs/paper-map.md").read_text()
    functions = re.findall(r"`(dystop\.[\w.]+)`", text)
    tests = re.findall(r"`(tests/[\w./]+)`", text)
    assert len(functions) > 15
    for name in functions:
        assert callable(resolve(name)), name
    for name in tests:
        assert (ROOT / name).is_file(), name


def test_names_in_the_architecture_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    pictures = [ROOT / "docs" / name for name in re.findall(r"\]\((images/[\w-]+\.svg)\)", text)]
    assert len(pictures) == 3
    for picture in pictures:
        names = re.findall(r'class="code"[^>]*>([\w.]+)<', picture.read_text())
        assert len(names) > 10
        for name in names:
            assert resolve(f"dystop.{name}") is not None, (picture.name, name)
    for name in re.findall(r"`(dystop\.[\w.]+)`", text):
        assert resolve(name) is not None, name
    for name in re.findall(r"`(tests/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def module_of(dotted: str) -> str:
    """Return the longest part of a dotted name that is a module."""
    try:
        return importlib.import_module(dotted).__name__
    except ModuleNotFoundError:
        return module_of(dotted.rpartition(".")[0])


def test_the_walks_through_the_code_are_counted():
    text = (ROOT / "docs/architecture.md").read_text().partition("## Three walks")[2]
    table = re.findall(r"^\| [\w ]+ \| \d+ \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    walks = [re.findall(r"^(?:\d\. |   ).*", walk, re.M) for walk in text.split("### ")[1:]]
    assert len(walks) == len(table) == 3
    for lines, counts in zip(walks, table, strict=True):
        hops = re.findall(r"`(dystop\.[\w.]+)`", "\n".join(lines))
        modules = {module_of(hop) for hop in hops}
        hand_offs = "".join(lines).count("⇒")
        assert [len(hops), len(modules), hand_offs] == list(map(int, counts))


def test_the_glossary_has_its_terms():
    text = (ROOT / "docs/glossary.md").read_text()
    terms = re.findall(r"^\| ([\w -]+) \|.*\]\(\.\./src/dystop/[\w/]+\.py\) \|$", text, re.M)
    assert len(terms) >= 40
    assert terms == sorted(terms, key=str.lower)


def test_every_equation_label_in_the_code_is_on_the_map():
    text = (ROOT / "docs/paper-map.md").read_text()
    for file in (ROOT / "src").rglob("*.py"):
        for label in re.findall(r"\b(?:eq|alg):\w+", file.read_text()):
            assert label in text, (file.name, label)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), (page.name, target)


def test_adrs_are_short_and_complete():
    for page in (ROOT / "docs/adr").glob("*.md"):
        text = page.read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences"))
        assert len(text.split()) < 250, page.name


def test_public_names():
    assert sorted(dystop.__all__) == sorted(set(dystop.__all__))
    for name in dystop.__all__:
        assert getattr(dystop, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dystop.nothing


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == dystop.__version__
    assert f"version: {dystop.__version__}" in (ROOT / "CITATION.cff").read_text()
