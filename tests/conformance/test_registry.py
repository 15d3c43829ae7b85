"""Mechanisms of installed packages: found by name, loaded on use, refused on a name clash."""

import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

import dystop.mechanisms
from dystop import config
from dystop.cli.app import app
from dystop.errors import ConfigError, DystopError, UserCodeError
from dystop.mechanisms import BUILT_IN, DySTop
from dystop.registry import Registry
from dystop.types import Mechanism

GROUP = "dystop.mechanisms"

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from dystop.mechanisms import DySTop

@dataclass(frozen=True)
class Copy(DySTop):
    '''A copy.'''
    name: ClassVar[str] = "copy"

class Stranger:
    name = "stranger"
"""


@pytest.fixture
def plugin_module(tmp_path, monkeypatch):
    (tmp_path / "plugged.py").write_text(MODULE)
    (tmp_path / "cracked.py").write_text("raise RuntimeError('cracked inside')")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("plugged", "cracked"):
        sys.modules.pop(name, None)


@pytest.fixture
def registry(monkeypatch):
    def make(*pairs, **points):
        found = [EntryPoint(name, value, GROUP) for name, value in [*pairs, *points.items()]]
        monkeypatch.setattr("dystop.registry.entry_points", lambda group: found)
        return Registry("mechanism", Mechanism, GROUP, BUILT_IN)

    return make


def test_built_in_names_need_no_search(monkeypatch):
    def never(group):
        raise AssertionError("looked for plug-ins")

    monkeypatch.setattr("dystop.registry.entry_points", never)
    found = Registry("mechanism", Mechanism, GROUP, BUILT_IN)
    assert found["dystop"] is DySTop
    assert "dystop" in found


@pytest.mark.usefixtures("plugin_module")
def test_plugins_are_listed_without_being_imported(registry):
    found = registry(copy="plugged:Copy", cracked="cracked:Cracked")
    assert list(found) == [*BUILT_IN, "copy", "cracked"]
    assert len(found) == len(BUILT_IN) + 2
    assert "copy" in found
    assert not {"plugged", "cracked"} & set(sys.modules)
    assert found["copy"].name == "copy"
    assert found["copy"] is found["copy"]
    assert "cracked" not in sys.modules
    with pytest.raises(KeyError):
        found["nothing"]
    assert found.get("nothing") is None


BROKEN = {
    "cracked": ("cracked:Cracked", "RuntimeError: cracked inside"),
    "missing": ("no_such_module:X", r"ModuleNotFoundError.*'no_such_module'"),
    "nameless": ("plugged:Nothing", r"AttributeError.*'Nothing'"),
    "stranger": ("plugged:Stranger", r"dystop\.Mechanism"),
    "other": ("plugged:Copy", "`name` is 'copy'"),
}


@pytest.mark.usefixtures("plugin_module")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_named_and_breaks_nothing_else(registry, name):
    place, message = BROKEN[name]
    found = registry(copy="plugged:Copy", **{name: place})
    with pytest.raises(DystopError, match=message) as caught:
        found[name]
    assert all(fact in str(caught.value) for fact in (repr(name), place))
    assert found["copy"].name == "copy"
    assert found["dystop"] is DySTop
    assert list(found.problems()) == [name]


@pytest.mark.usefixtures("plugin_module")
def test_clashes_are_refused(registry):
    found = registry(
        ("copy", "plugged:Copy"),
        ("copy", "plugged:Copy"),  # the same package, found twice
        ("dystop", "plugged:Copy"),
        ("twin", "plugged:Copy"),
        ("twin", "cracked:Other"),
    )
    assert found["copy"].name == "copy"
    assert found["dystop"] is DySTop
    with pytest.raises(ConfigError, match=r"'twin'.*two packages"):
        found["twin"]
    problems = found.problems()
    assert list(problems) == ["dystop", "twin"]
    assert "built-in" in problems["dystop"]


@pytest.mark.usefixtures("plugin_module")
def test_commands_use_plugins(registry, monkeypatch):
    found = registry(copy="plugged:Copy", cracked="cracked:Cracked")
    monkeypatch.setattr(dystop.mechanisms, "MECHANISMS", found)
    for module in ("experiment", "read"):
        monkeypatch.setattr(f"dystop.config.{module}.MECHANISMS", found)
    listed = CliRunner().invoke(app, ["list", "mechanisms"])
    assert listed.exit_code == 0
    assert "copy" in listed.stdout
    assert "'cracked'" in listed.stderr
    assert type(config.read_experiment(None, ["mechanism.name=copy"]).mechanism) is found["copy"]
    with pytest.raises(UserCodeError, match=r"cracked\.py:1: .*cracked inside"):
        config.read_experiment(None, ["mechanism.name=cracked"])
    described = CliRunner().invoke(app, ["list", "mechanisms", "--describe", "copy"])
    assert "mechanism.V" in described.stdout


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dystopp", {}, "mechanism 'dystopp' is unknown.*'dystop'"),
        ("dystop", {"neighbour": 3}, "'dystop' has no parameter 'neighbour'.*'neighbours'"),
        ("dystop", {"neighbours": -1}, r"dystop\.neighbours = -1: must be >= "),
    ],
)
def test_wrong_names_and_parameters_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        dystop.mechanisms.MECHANISMS.make(name, **options)
