"""What the soak with hostile members counts as broken; the soak itself is run by hand."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "hostile_soak.py"
GOOD = {"wall_s": 10.0, "trainings": 100, "unnamed": [], "numbers": True, "memory": 1e5,
        "ledger": 900.0, "findings": []}  # fmt: skip


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("hostile_soak", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pairs(tmp_path):
    """Return a function that writes pairs of runs, of which the hostile ones made so much."""

    def write(*trainings, **changes):
        for k, made in enumerate(trainings):
            (tmp_path / str(k)).mkdir()
            hostile = {**GOOD, "trainings": made, **changes}
            for name, facts in (("hostile", hostile), ("control", GOOD)):
                (tmp_path / str(k) / f"{name}.json").write_text(json.dumps(facts))
        return sorted(tmp_path.iterdir())

    return write


def test_the_median_of_three_pairs_counts(script, pairs):
    summary = script.verdict(pairs(20, 70, 90))
    assert (summary["shares"], summary["share"]) == ([0.2, 0.7, 0.9], 0.7)
    assert summary["broken"] == []


def test_a_low_median_is_broken(script, pairs):
    assert script.verdict(pairs(20, 50, 90))["broken"] == ["honest workers keep 0.50 of their pace"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"unnamed": ["w08"]}, "w08"),
        ({"numbers": False}, "out of order"),
        ({"memory": 2e6}, "grows"),
        ({"memory": None}, "not measured"),
        ({"ledger": 5000.0}, "5000 bytes"),
        ({"findings": ["I4"]}, "I4"),
    ],
)
def test_every_guarantee_is_looked_at(script, pairs, changes, word):
    (found,) = script.verdict(pairs(90, **changes))["broken"]
    assert word in found


def test_backups_count_once_beside_the_ledger(script, tmp_path):
    (tmp_path / "backups").mkdir()
    for name in ("state.db", "state.archive", "backups/state.archive", "backups/state-00000100.db"):
        (tmp_path / name).write_bytes(bytes(100))
    assert script.ledger_bytes(tmp_path) == 400


@pytest.mark.parametrize(
    ("cores", "honest", "hostile"),
    [([0, 1], {0}, {1}), ([4, 5, 6], {4, 5}, {6}), ([3], {3}, {3})],
)
def test_attackers_have_cores_of_their_own(script, cores, honest, hostile):
    assert script.halves(cores) == (honest, hostile)
