"""Golden runs: decisions must repeat exactly, learned numbers closely (other machines)."""

import json

import pytest

from support.stored_runs import GOLDEN, GOLDEN_RUNS, assert_same, golden_lines, read_lines


@pytest.mark.parametrize("name", GOLDEN_RUNS)
def test_golden_run(name, request):
    path = GOLDEN / f"{name}.jsonl"
    got = golden_lines(name)
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in got))
    assert_same(got, read_lines(path))
