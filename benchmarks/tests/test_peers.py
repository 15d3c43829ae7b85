"""The runner of benchmarks/peers, on children that are a few lines of Python: no peer is needed."""

import io
import json
import math
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

FOLDER = Path(__file__).parents[1] / "peers"
GOOD = {
    "version": "1.2",
    "mode": "fast",
    "workers": 2,
    "images": [20, 20],
    "images_per_s": [100.0, 300.0],
    "startup_s": 1.5,
    "loss": [2.0, 1.0],
    "ended": [10.0, 10.2, 10.3],
}


@pytest.fixture(scope="module")
def peers():
    """The modules of the folder, which is no package: its scripts run in other environments."""
    names = ("child", "environments", "launch", "material", "nets", "run", "table", "watch")
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: __import__(name) for name in names})
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


def fake(folder: Path, name: str, **changes) -> Path:
    script = folder / name
    script.write_text(f"print('chatter')\nprint({json.dumps(GOOD | changes)!r})\n")
    return script


def parsed(peers, **changes):
    return peers.launch.parse("it", json.dumps(GOOD | changes), 10)


def test_the_last_line_of_a_child_is_its_report(peers):
    run = peers.launch.parse("it", "hello\n" + json.dumps(GOOD) + "\n\n", 10)
    assert (run.version, run.mode, run.rate, run.startup_s, run.error) == (
        "1.2", "fast", 200.0, 1.5, ""
    )  # fmt: skip


@pytest.mark.parametrize("stdout", ["", "done\n", "{}\n", "[1]\n", '{"version": 1}\n'])
def test_a_child_without_a_report_has_failed(peers, stdout):
    run = peers.launch.parse("it", stdout, 10)
    assert "expected one line of JSON" in run.error
    assert math.isnan(run.rate)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [20, 19]}, "expected 20"),
        ({"images": []}, "expected 20"),
        ({"workers": 3}, "expected 30"),
        ({"loss": [1.0, 1.5]}, "expected it to fall"),
        ({"loss": [1.0, math.nan]}, "expected it to fall"),
    ],
)
def test_work_that_was_not_done_is_a_failure(peers, changes, words):
    assert words in parsed(peers, **changes).error


def test_a_child_that_raises_shows_its_last_lines(peers, tmp_path):
    script = tmp_path / "bad.py"
    script.write_text("raise RuntimeError('no such device')\n")
    run = peers.launch.launch("bad", [sys.executable, str(script)], 10, 60)
    assert "exit code 1" in run.error
    assert run.error.endswith("RuntimeError: no such device")


def test_a_child_that_hangs_is_stopped(peers, tmp_path):
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(60)\n")
    run = peers.launch.launch("slow", [sys.executable, str(script)], 10, 0.3)
    assert "not done after 0 s" in run.error


def test_the_shared_report_says_what_was_done(peers, tmp_path):
    data = tmp_path / "tiny.npz"
    np.savez(data, x_train=np.zeros((20, 28, 28), np.uint8), y_train=np.arange(20) % 10)
    script = tmp_path / "peer.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(FOLDER)!r})
        from child import Report, read_work
        work = read_work()
        print("this goes to stderr")
        report = Report(work)
        for _ in range(work.total_rounds):
            report.round_ended(sum(len(y) for _, y in work.shards()))
        report.send("numpy", "at rest", (2.0, 1.0))
        """)
    )
    words = ["--data", str(data), "--workers", "2", "--rounds", "3"]
    run = peers.launch.launch("it", [sys.executable, str(script), *words], 10, 60)
    assert run.error == ""
    assert (run.version, run.mode, run.images) == (np.__version__, "at rest", [20, 20, 20])
    assert 0 < run.startup_s < 60


@pytest.fixture
def setting(peers, tmp_path, monkeypatch):
    """Two peers that are two lines of Python each; one of them fails."""
    data = tmp_path / "tiny.npz"
    np.savez(data, x_train=np.zeros((20, 28, 28), np.uint8), y_train=np.zeros(20, int))
    fake(tmp_path, "plain.py", images=[20], images_per_s=[100.0], ended=[10.0, 10.2])
    fake(tmp_path, "dystop_run.py", images=[20], images_per_s=[150.0], ended=[10.0, 10.2])
    fake(tmp_path, "peer_flower.py", images=[20], images_per_s=[50.0], ended=[10.0, 10.2])
    (tmp_path / "peer_fluke.py").write_text("import sys\nsys.exit('out of order')\n")
    monkeypatch.setattr(peers.run, "HERE", tmp_path)
    monkeypatch.setattr(peers.run, "python_of", lambda name, folder: sys.executable)
    return peers.run.Setting(data, tmp_path, workers=2, rounds=1, limit_s=60)


def test_every_peer_lies_between_the_references(peers, setting):
    groups = peers.run.measure_all(setting, ["fluke", "flower"], repeat=2)
    assert [g.peer.name for g in groups] == ["fluke", "flower"] * 2
    assert all(a.after is b.before for a, b in pairwise(groups))
    plain, ours, fluke, flower = peers.table.rows(groups)
    assert (plain.name, ours.name) == ("plain loop", "dystop")
    assert (ours.to_plain, plain.ours_to_it) == (1.5, 1.5)
    assert (flower.images_per_s, flower.to_plain, flower.ours_to_it) == (50.0, 0.5, 3.0)
    assert "out of order" in fluke.error
    assert math.isnan(fluke.to_plain)


def test_the_table_names_failures(peers, setting):
    lines = peers.table.rows(peers.run.measure_all(setting, ["fluke", "flower"], repeat=1))
    console = Console(width=200, file=io.StringIO())
    console.print(peers.table.table_of(lines))
    text = console.file.getvalue()
    assert "FAILED: out of order" in text
    assert "0.50" in text
    assert "3.00" in text


def test_all_figures_go_into_the_file(peers, setting, tmp_path):
    groups = peers.run.measure_all(setting, ["fluke"], repeat=1)
    peers.run.write_json(tmp_path / "out.json", peers.run.machine(), setting, groups)
    content = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert [run["name"] for run in content["runs"]] == [
        "plain loop", "fluke", "dystop", "plain loop"
    ]  # fmt: skip
    assert content["table"][2]["to_plain"] is None


def test_a_busy_machine_is_tried_again(peers, setting, monkeypatch):
    shares = iter([0.5, 0.3, 0.4])
    run = peers.launch.Run("it", images_per_s=[1.0])
    once = lambda *_: replace(run, others_by_round=[next(shares)])  # noqa: E731
    monkeypatch.setattr(peers.run, "launch", once)
    assert peers.run.measure(replace(setting, retries=2), "it", Path("it.py")).others == 0.3


@pytest.mark.parametrize(
    ("shares", "rates"), [([0.0, 0.1, 0.2], [1.0, 2.0]), ([0.5, 0.4, 0.9], [2.0])]
)
def test_only_quiet_rounds_count(peers, shares, rates):
    run = peers.launch.Run("it", images_per_s=[1.0, 2.0, 3.0], others_by_round=shares)
    assert run.rates == rates


def test_a_watch_tells_others_from_the_child(peers, monkeypatch):
    watch = peers.watch.Watch(os.getpid())
    watch._trace = [(0.0, 0), (2.0, 0), (4.0, 100)]
    monkeypatch.setattr(peers.watch, "capacity_ticks", lambda seconds: 100 * seconds)
    assert watch.others(0.0, 2.0) == 0.0
    assert watch.others(2.0, 4.0) == 0.5
    watch._look()
    assert os.getpid() in watch._own


def test_only_known_peers_can_be_asked_for(peers, capsys):
    assert peers.run.arguments(["--only", "fluke, pfl"]).only == ["fluke", "pfl"]
    with pytest.raises(SystemExit):
        peers.run.arguments(["--only", "fluke,sparrow"])
    assert "sparrow: unknown; known are flower" in capsys.readouterr().err


def test_an_environment_is_made_once(peers, tmp_path, monkeypatch):
    commands = []
    done = subprocess.CompletedProcess([], 0, "", "")
    runs = lambda command, **_: commands.append(command) or done  # noqa: E731
    monkeypatch.setattr(peers.environments.subprocess, "run", runs)
    (tmp_path / "fluke").mkdir()
    for _ in range(2):
        python = peers.environments.python_of("fluke", tmp_path)
    assert python == tmp_path / "fluke" / "bin" / "python"
    assert [command[2] for command in commands] == ["venv", "pip"]
    assert "--no-deps" in commands[1]


def test_a_failed_installation_is_reported(peers, setting, monkeypatch):
    done = subprocess.CompletedProcess([], 1, "", "one\nno matching distribution")
    monkeypatch.setattr(peers.environments.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(peers.run, "python_of", peers.environments.python_of)
    run = peers.run.measure_peer(setting, "fluke")
    assert run.error == "cannot be installed\none\nno matching distribution"


def test_every_peer_is_pinned_and_has_a_script(peers):
    for name in peers.run.PEERS:
        assert (FOLDER / f"peer_{name}.py").is_file()
        lines = (FOLDER / "requirements" / f"{name}.txt").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins
        assert all(line.count("==") == 1 and "@" not in line for line in pins), name


def test_the_peers_train_our_network(peers):
    from dystop.training.models.small import cnn

    theirs, ours = peers.nets.cnn(), cnn(1, (28, 28), 10)
    assert str(theirs) == str(ours)
    assert sum(p.numel() for p in theirs.parameters()) == 21_840


def test_a_small_set_is_repeated(peers, tmp_path, monkeypatch):
    data = SimpleNamespace(
        x_train=np.arange(4, dtype=np.uint8)[:, None],
        y_train=np.arange(4),
        x_test=np.zeros((2, 1), np.uint8),
        y_test=np.zeros(2, int),
    )
    monkeypatch.setattr(peers.material, "_fashion", lambda: data)
    monkeypatch.setattr(peers.material, "IMAGES", 12)
    path = peers.material.data_file(tmp_path / "new" / "data.npz")
    assert peers.material.images_in(path) == 12
    with np.load(path) as file:
        np.testing.assert_array_equal(np.sort(file["y_train"]), np.repeat(np.arange(4), 3))
        np.testing.assert_array_equal(file["x_train"][:, 0], file["y_train"])


def test_a_family_is_found_by_its_parents(peers):
    process = peers.watch.Process
    running = {5: process(1, 0), 6: process(5, 0), 7: process(6, 0), 8: process(1, 0)}
    assert peers.watch.family(5, running) == {5, 6, 7}
    assert peers.watch.family(9, running) == set()
