"""The table of mutants fits the tree, and the script that runs them tells who survived."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/mutants.py"
TABLE = """
[[mutant]]
name = "minus"
file = "src/sums.py"
text = "a + b"
replacement = "a - b"
tests = ["tests/test_sums.py::test_sum"]

[[mutant]]
name = "no-carry"
file = "src/sums.py"
text = "carry = 1"
replacement = "carry = 0"
tests = ["tests/test_sums.py::test_sum"]
"""


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.fixture
def tree(tmp_path):
    """A tree with a sum, and a test that does not look at the carry."""
    for name, text in {
        "src/sums.py": "carry = 1\n\n\ndef add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "import sums\n\n\ndef test_sum():\n    assert sums.add(1, 2) == 3\n",
        "pyproject.toml": "",
        "table.toml": TABLE,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(mutants, tree, *words):
    return mutants.main(words, table=tree / "table.toml", root=tree)


def test_every_text_is_found_once_and_every_test_exists(mutants):
    table = mutants.read_table()
    assert list(mutants.problems(table)) == []
    assert len(table) >= 30
    packages = {mutant.file.split("/")[2] for mutant in table}
    assert packages >= {"control", "world", "training", "simulator", "testbed"}


def test_a_mutant_that_no_test_notices_is_named(mutants, tree, capsys):
    assert run(mutants, tree, "--jobs", "2") == 1
    said = capsys.readouterr().out
    assert "1 of 2 mutants killed" in said
    assert "SURVIVED: no-carry in src/sums.py" in said
    assert "a + b" in (tree / "src/sums.py").read_text()
    assert run(mutants, tree, "--only", "minus") == 0


def test_a_test_that_always_fails_kills_nothing(mutants, tree, capsys):
    (tree / "tests/test_sums.py").write_text("def test_sum():\n    assert False\n")
    with pytest.raises(SystemExit) as end:
        run(mutants, tree)
    assert end.value.code == 2
    assert "without a mutant" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("a + b", "a + c", "occurs 0 times"),
        ('text = "carry = 1"', 'text = "a"', "times in src/sums.py"),
        ("a - b", "a -", "no Python"),
        ("test_sum\"", "test_all\"", "there is no test"),
        ("a - b", "a + b", "changes nothing"),
        ("no-carry", "minus", "two mutants"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(mutants, tree, capsys, old, new, fact):
    (tree / "table.toml").write_text(TABLE.replace(old, new))
    assert run(mutants, tree) == 2
    assert fact in capsys.readouterr().out


def test_only_asks_for_a_name_that_exists(mutants, tree):
    assert run(mutants, tree, "--list", "--only", "carry") == 0
    assert run(mutants, tree, "--only", "nothing-like-it") == 2
