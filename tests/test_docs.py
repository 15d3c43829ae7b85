"""Documentation that cannot lie: every snippet runs, every name in the paper map exists."""

import ast
import pkgutil
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dystop
from dystop.cli.app import app
from dystop.config import read_experiment

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

ROOT = Path(__file__).parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*TOP, *ROOT.glob("docs/**/*.md")])
GUIDES = {"tutorial", "how-to", "explanation", "reference"}
LESSONS = [ROOT / "docs/index.md", ROOT / "docs/mechanisms.md"]
FOLLOWED = [*LESSONS, *(page for page in PAGES if GUIDES & {*page.parts})]
REST = [page for page in PAGES if page not in FOLLOWED]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "stop.rounds=2",
    "fleet.workers=6",
    "evaluate.every_rounds=1",
]


def snippets(kind: str, pages):
    for page in pages:
        for number, (language, body) in enumerate(FENCE.findall(page.read_text())):
            if language == kind:
                yield pytest.param(body, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("body", list(snippets("python", REST)))
def test_python_snippets_run(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "fmnist-mini" in body:  # the overview trains the CNN; a test shortens the run, nothing else
        body = body.replace("rounds=20", "rounds=2").replace("workers=30", "workers=4")
    names = {"__name__": "snippet"}
    exec(compile(body, "snippet", "exec"), names)
    check_comparisons(names)


def check_comparisons(names):
    """An example compares mechanisms that have had the same time."""
    compared = [value for value in names.values() if isinstance(value, dystop.Comparison)]
    assert not [comparison.warning for comparison in compared if comparison.warning]


def commands(body: str):
    for line in body.splitlines():
        if line.startswith("$ "):
            yield line[2:].split("  #")[0].strip()


SMALL_TASK = ["fleet.workers=3", "stop.rounds=2", "evaluate.every_rounds=1"]
SMALL_TEXT = ["data.options.train=48", "data.options.test=12", "data.options.length=8"]
SMALL_TABLE = ["data.options.train=80", "data.options.test=20"]
OTHER_TASKS = {
    "text": SMALL_TEXT,
    "lora": SMALL_TEXT,
    "tabular": SMALL_TABLE,
    "generated-table": SMALL_TABLE,
}


def shortened(words):
    """Return the words of a command with more keys that make it small."""
    other = next((small for name, small in OTHER_TASKS.items() if name in " ".join(words)), None)
    if words[0] in ("run", "compare") and other is not None:
        short = ["--no-report"] if words[0] == "run" else ["--seeds", "1"]
        return [*words, *SMALL_TASK, *other, *short]
    own = {word.partition("=")[0] for word in words if re.match(r"[\w.]+=.*(\.npz$|:)", word)}
    small = [key for key in SMALL if key.partition("=")[0] not in own]
    if words[0] == "run":
        if any(word.startswith("trace=") for word in words):  # as small as what it replays
            return [*words, "--no-report"]
        if "mechanism.name=d-psgd" in words and "--name" not in words:
            words = [*words, "--name", "d-psgd-fmnist-mini-s0"]
        return [*words, *small, "--no-report"]
    if words[0] == "compare" and "--mechanisms" in words:
        return [*words, *small, "--seeds", "1" if "--jobs" in words else "2"]
    if words[0] == "sweep" and "--over" in words:
        return [*words, *small]
    if words[0] == "advise":
        few = [] if "--mechanisms" in words else ["--mechanisms", "dystop,d-psgd"]
        return [*words, *small, *few, "--seconds", "0.3", "--seeds", "1"]
    if words[:2] == ["data", "partition"] and "=" in words[2]:
        return [*words, *small]
    if words[0] == "testbed" and "--resume" in words:
        return [*words, "--no-report"]
    if words[0] == "testbed":  # processes are for test_launch.py
        fast = ["fleet.workers=3", "testbed.time_scale=0.01", "--transport", "memory"]
        return [*words, *small, *fast, "--no-report"]
    return words


def run_command(page, line):
    program, *words = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
        return
    assert program == "dystop", line
    result = CliRunner().invoke(app, shortened(words))
    assert result.exit_code == 0, (page.name, line, result.output)


def test_console_snippets_run(tmp_path, monkeypatch):
    """In order, in one folder, as a reader would type them; runs are made small by more keys."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for page in REST:
        for language, body in FENCE.findall(page.read_text()):
            for line in commands(body) if language == "console" else ():
                run_command(page, line)
                ran += 1
    assert ran >= 9


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_from_top_to_bottom(page, tmp_path, monkeypatch):
    """Its snippets share a folder and their variables; what goes `into a_file.py` lies there."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names, text = {"__name__": "snippet"}, page.read_text()
    for found in FENCE.finditer(text):
        language, body = found.groups()
        file = re.search(r"into `(\w+\.py)`:\s*$", text[: found.start()])
        if language == "console":
            for line in commands(body):
                run_command(page, line)
        elif language == "python" and file:
            (tmp_path / file[1]).write_text(body)
            sys.modules.pop(Path(file[1]).stem, None)
        elif language == "python":
            exec(compile(body, "snippet", "exec"), names)
            check_comparisons(names)


@pytest.mark.parametrize("body", list(snippets("toml", PAGES)))
def test_toml_snippets_are_valid(body, tmp_path):
    tomllib.loads(body)
    file = tmp_path / "snippet.toml"
    file.write_text(body)
    read_experiment(file)


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/*.toml")), ids=lambda p: p.name)
def test_examples_are_valid(file):
    read_experiment(file)


def test_paper_map_names_exist():
    text = (ROOT / "docs/paper-map.md").read_text()
    functions = re.findall(r"`(dystop\.[\w.]+)`", text)
    tests = re.findall(r"`((?:paper/)?tests/[\w./]+)`", text)
    assert len(functions) > 15
    for name in functions:
        assert callable(pkgutil.resolve_name(name)), name
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
            assert pkgutil.resolve_name(f"dystop.{name}") is not None, (picture.name, name)
    for name in re.findall(r"`(dystop\.[\w.]+)`", text):
        assert pkgutil.resolve_name(name) is not None, name
    for name in re.findall(r"`(tests/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def modules_in(package: Path) -> set[str]:
    """Return the names of the modules and packages directly inside a package."""
    inside = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    return inside | {path.parent.name for path in package.glob("*/__init__.py")}


def test_lists_of_modules_are_complete():
    lists = {}
    projects = (ROOT / "src", ROOT / "paper/src", ROOT / "benchmarks/src")
    for path in (path for project in projects for path in project.rglob("__init__.py")):
        listed = re.findall(
            r"^(\w+)/?  +\S", ast.get_docstring(ast.parse(path.read_text())) or "", re.M
        )
        if len(listed) > 1:
            lists[path.parent] = sorted(listed)
    assert len(lists) > 20
    for package, listed in lists.items():
        others = {path.name for path in package.iterdir() if path.is_dir()}  # such as static/
        assert modules_in(package) <= set(listed) <= modules_in(package) | others, package


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


def test_adrs_are_complete_and_listed():
    listed = (ROOT / "docs/architecture.md").read_text()
    for page in (ROOT / "docs/adr").glob("*.md"):
        text = page.read_text()
        title = text.splitlines()[0].partition(". ")[2]
        assert f"| [{title}](adr/{page.name}) |" in listed
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences"))


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
