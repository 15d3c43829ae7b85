"""The sdist and the wheel: all that README links to, and the examples in any folder."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import packages_distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hatchling import build
from packaging.version import Version
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.runs.examples import examples, find_example

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=3", "stop.rounds=1"]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Return the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    before = Path.cwd()
    try:
        os.chdir(ROOT)
        name = build.build_sdist(str(folder))
    finally:
        os.chdir(before)
    with tarfile.open(folder / name) as archive:
        archive.extractall(folder, filter="data")
    return folder / name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Return the wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    before = Path.cwd()
    try:
        os.chdir(sdist)
        return folder / build.build_wheel(str(folder))
    finally:
        os.chdir(before)


def test_no_module_is_ignored(sdist):
    """A rule of .gitignore, such as runs/, may match a package of the same name."""
    there = {path.relative_to(ROOT) for path in (ROOT / "src").rglob("*.py")}
    assert len(there) > 400
    assert {path for path in there if not (sdist / path).is_file()} == set()


def test_every_link_of_the_readme_leads_somewhere_in_the_sdist(sdist):
    links = LINK.findall((sdist / "README.md").read_text())
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://") or (sdist / link).exists(), link


def test_every_link_of_the_pages_leads_somewhere_in_the_sdist(sdist):
    for page in [*sdist.glob("*.md"), *sdist.glob("docs/**/*.md")]:
        for link in LINK.findall(page.read_text()):
            target = link.startswith("http") or (page.parent / link).exists()
            assert target, (page.relative_to(sdist), link)


def test_the_long_description_has_no_link_without_an_address(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# dystop")
    links = LINK.findall(text)
    assert links
    assert all(link.startswith("https://") for link in links)


def test_a_known_address_makes_links_and_pictures_absolute():
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.long_description((ROOT / "README.md").read_text(), "https://host/dystop", "1.0")
    assert "](https://host/dystop/raw/v1.0/docs/images/run.svg)" in text
    assert all(link.startswith("https://") for link in LINK.findall(text))


def test_an_installed_wheel_runs_an_example_in_an_empty_folder(wheel, tmp_path):
    target, folder = tmp_path / "installed", tmp_path / "empty"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    folder.mkdir()
    ran = {
        **os.environ,
        "PYTHONPATH": str(target),  # before the editable installation
        "DYSTOP_KERNELS": "off",  # nothing is compiled for a new place
        "NUMBA_DISABLE_JIT": "1",
    }

    def dystop(*words):
        line = [sys.executable, "-m", "dystop", *words]
        done = subprocess.run(line, cwd=folder, env=ran, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "quickstart" in dystop("examples")
    dystop("run", "example:quickstart", *SMALL, "--no-report")
    assert (folder / "runs/quickstart/records.jsonl").is_file()
    dystop("examples", "flower", "--to", "own")
    assert {file.name for file in (folder / "own").iterdir()} == {"flower.toml", "flower_app.py"}


def test_examples_are_listed_with_a_sentence_each():
    names = {example.name for example in examples()}
    assert names == {file.stem for file in (ROOT / "examples").iterdir() if file.is_file()}
    listed = CliRunner().invoke(app, ["examples"])
    assert listed.exit_code == 0
    for example in examples():
        assert example.name in listed.output
        assert 10 < len(example.sentence) < 140, example.name


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("flower_app", ["run 'my own/'flower.toml model.python=flower-env/bin/python"]),
        ("flower", ["run 'my own/'flower.toml model.python=flower-env/bin/python"]),
        ("lora", ["run 'my own/'lora-base.toml", "compare 'my own/'lora.toml"]),
        ("quickstart", ["run 'my own/quickstart.toml'"]),
        ("callbacks", ["python 'my own/callbacks.py'"]),
    ],
)
def test_a_copied_example_names_commands_that_can_work(name, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["examples", name, "--to", "my own"])
    shown = [line for line in done.output.splitlines() if line.startswith("use it: ")]
    assert all(any(command in line for line in shown) for command in commands), shown
    assert "python 'my own/flower_app.py'" not in done.output


@pytest.mark.parametrize("name", [example.name for example in examples()])
def test_a_copied_example_brings_the_files_of_its_commands(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["examples", name, "--to", "here"])
    shown = [line for line in done.output.splitlines() if line.startswith("use it: ")]
    named = [w for line in shown for w in shlex.split(line) if w.startswith("here/")]
    assert named, shown
    assert [file for file in named if not (tmp_path / file).is_file()] == []


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "example:demo", "--mechanisms", "dystop,d-psgd", *SMALL, "stop.seconds=1"],
        ["sweep", "example:demo", "--over", "mechanism.V=1,10", *SMALL],
        ["data", "partition", "example:demo", *SMALL, "--out", "split.csv"],
    ],
    ids=lambda words: words[0],
)
def test_commands_take_an_example_as_their_configuration(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["run", "example:quikstart"], ["quikstart", "quickstart", "dystop examples"]),
        (["run", "example:callbacks"], ["example:callbacks", "dystop examples callbacks"]),
        (["examples", "nothing-like-it"], ["nothing-like-it", "dystop examples"]),
    ],
)
def test_a_wrong_example_gets_one_message(words, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert all(fact in done.output for fact in facts)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_never_replaces_a_file_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["examples", "demo"]).exit_code == 0
    assert CliRunner().invoke(app, ["examples", "demo"]).exit_code == 0
    copy = tmp_path / "examples/demo.toml"
    assert copy.read_bytes() == find_example("demo").file.read_bytes()
    copy.write_text("seed = 7\n")
    refused = CliRunner().invoke(app, ["examples", "demo", "text"])
    assert refused.exit_code == 2
    assert "examples/demo.toml" in refused.output
    assert copy.read_text() == "seed = 7\n"
    assert not (tmp_path / "examples/text.toml").exists()


def declared():
    """Return the lower bound of every dependency, by the script that `make audit` uses."""
    spec = spec_from_file_location("lower_bounds", ROOT / "scripts" / "lower_bounds.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: Version(bound) for name, bound in module.lower_bounds().items()}


def test_whatever_is_imported_is_declared():
    """A package that comes only with another one leaves as silently as it came."""
    known = {name: {d.lower() for d in found} for name, found in packages_distributions().items()}
    bounds, missing = declared(), set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names} & known.keys() - {"dystop"}
            missing |= {(top, path) for top in tops if not known[top] & bounds.keys()}
    assert missing == set()


@pytest.mark.parametrize(
    ("name", "mended"),
    [
        ("cryptography", "50.0.0"),
        ("grpcio", "1.66.2"),
        ("jinja2", "3.1.6"),
        ("mlflow-skinny", "3.13.0"),
        ("pillow", "12.3.0"),
        ("pyarrow", "23.0.1"),
        ("pytest", "9.0.3"),
        ("ray", "2.55.0"),
        ("torch", "2.13.0"),
    ],
)
def test_no_bound_admits_a_version_with_an_advisory(name, mended):
    assert declared()[name] >= Version(mended)


def test_what_is_locked_is_within_the_bounds():
    bounds = declared()
    for file in (ROOT / "constraints.txt", ROOT / "deploy" / "requirements.txt"):
        locked = dict(re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.M))
        assert locked
        for name in locked.keys() & bounds.keys():
            assert Version(locked[name]) >= bounds[name], f"{file}: {name}"


def test_an_audit_without_a_network_fails():
    """pip-audit skips what it cannot look up, and calls the rest free of advisories."""
    audit = re.search(r"^audit:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    calls = [line for line in audit.splitlines() if "pip-audit --" in line]
    assert len(calls) == 2
    assert all("--strict" in line for line in calls)
