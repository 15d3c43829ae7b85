"""`paper/scripts/replan_runs.py` finds the runs of a results page that would be others today."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "replan_runs.py"
COLUMNS = "campaign,arm,seed,rounds,clock_s,wire_bytes,epochs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("replan_runs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    x, y = np.zeros((600, 32, 32, 3), np.uint8), np.arange(600) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return path


def test_a_run_is_unchanged_until_a_setting_changes(script, data, tmp_path, monkeypatch, capsys):
    row = dict.fromkeys(COLUMNS.split(","), "0")
    row |= {"campaign": "testbed-svhn", "arm": "dystop-phi0.5"}
    ((_, _, now),) = script.compared([row], ("stop.seconds=20",), {"svhn": str(data)})
    page = tmp_path / "runs.csv"
    cells = f"testbed-svhn,dystop-phi0.5,0,{now.rounds},{now.clock_s},{now.wire_bytes},{now.epochs}"
    page.write_text(f"{COLUMNS}\n{cells}\n", encoding="utf-8")

    def different(*words: str) -> int:
        words = (str(page), "--data", f"svhn={data}", "stop.seconds=20", *words)
        monkeypatch.setattr(sys, "argv", ["replan_runs.py", *words])
        return script.main()

    assert different() == 0
    assert "1 of 1 runs are unchanged" in capsys.readouterr().out
    assert different("world.range_m=20") == 1
    assert f"the page has {now}" in capsys.readouterr().out
