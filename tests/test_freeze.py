"""The script that freezes behaviour covers every mechanism, and finds what differs."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from dystop.mechanisms import BUILT_IN

SCRIPT = Path(__file__).parent.parent / "scripts/freeze.py"


@pytest.fixture(scope="module")
def freeze():
    spec = importlib.util.spec_from_file_location("freeze", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["freeze"] = module  # dataclasses and new processes look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["freeze"]


def test_the_matrix_holds_every_mechanism_and_no_name_twice(freeze):
    cases = list(freeze.all_cases(paper_scale=True, gpu=True))
    assert set(freeze.MECHANISMS) == set(BUILT_IN)
    assert not [name for name, count in Counter(c.name for c in cases).items() if count > 1]


def test_order_and_grouping_of_fields_do_not_count(freeze):
    one = freeze.digests(['{"round": 1, "loss": 0.5, "notes": {}, "epsilon": null}'])
    assert freeze.digests(['{"part": {"loss": 0.5}, "round": 1}']) == one
    assert freeze.digests(['{"round": 1, "loss": 0.25}'])["records"] != one["records"]


def test_a_case_runs_is_refused_or_is_an_error(freeze, tmp_path):
    small = tuple(freeze.SMALL.split())
    bench = freeze.Bench(tmp_path)
    case = freeze.Case("one", "fedavg", (*small, "stop.rounds=2"))
    done = freeze.carried_out(case, bench)
    assert (done["rounds"], done["back_end"]) == (2, "fused on cpu")
    again = freeze.carried_out(freeze.Case("two", "fedavg", case.words), bench)
    assert {**again, "seconds": 0} == {**done, "seconds": 0}
    refused = freeze.carried_out(freeze.Case("x", "fedavg", (*small, "link.fraction=7")), bench)
    assert refused["refused"] == "ConfigError"


def test_a_comparison_names_the_field_and_the_memory_that_differ(freeze):
    fields = [freeze.digests([f'{{"round": 1, "loss": {loss}}}']) for loss in (0.5, 0.25)]
    old, new = (
        {"only": [], "cases": {"a/plain": f}, "groups": {"g": {"peak_kib": kib, "cases": 1}}}
        for f, kib in zip(fields, (2048, 4096), strict=True)
    )
    differences = ["a/plain: records in loss", "group g: peak memory 2 -> 4 MiB"]
    assert freeze.compare(old, new) == differences
    assert freeze.compare(old, old) == []
    cases = {"a/ahead": fields[0], "a/plain": fields[1]}
    assert freeze.broken_promises(cases) == ["a/plain is not a/ahead: records in loss"]
