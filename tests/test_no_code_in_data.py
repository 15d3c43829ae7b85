"""Nothing in the packages turns data into code: no pickle, no eval, in any file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = [ROOT / "src", ROOT / "paper/src", ROOT / "benchmarks/src"]
SOURCES = sorted(path for place in PLACES for path in place.rglob("*.py"))
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "pickle.load"}


def dangers(text: str) -> list[str]:
    """What a module does that it must not: imports, calls, and NumPy files with objects."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] if (node.module or "").split(".")[0] in MODULES else []
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] if name in CALLS else []
            allows = [k for k in node.keywords if k.arg == "allow_pickle"]
            if any(not isinstance(k.value, ast.Constant) or k.value.value for k in allows):
                found.append(f"{name}(allow_pickle)")
    return found


def test_the_scan_finds_what_it_should():
    for bad in [
        "import pickle",
        "from marshal import loads",
        "import cloudpickle.compat",
        "eval('1')",
        "exec(text)",
        "torch.load(file)",
        "yaml.load(file)",
        "np.load(file, allow_pickle=True)",
        "def f():\n    import dill as d",
    ]:
        assert dangers(bad), bad
    assert not dangers("model.eval()\nnp.load(f, allow_pickle=False)\n'no pickle here'")


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_runs_what_it_reads(source):
    assert dangers(source.read_text()) == []
