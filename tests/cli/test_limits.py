"""What cannot work is refused with one message; what breaks half-way leaves a resumable run."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dystop.cli.app import app
from dystop.folders.run_folder import open_run

SMALL = [
    "data.name=synthetic",
    "model.name=softmax",
    "fleet.workers=6",
    "stop.rounds=40",
    "output.checkpoint_every=2",
]


def dystop(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def in_a_process(*words: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dystop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def one_message(stderr: str) -> str:
    assert "Traceback" not in stderr
    assert stderr.count("Error:") == 1
    return stderr


def refused(words: list[str], out: Path) -> str:
    result = dystop("run", *words, "--out", str(out))
    assert result.exit_code == 2, result.output
    assert not out.exists() or not list(out.iterdir())
    return result.output


def test_a_hundred_resnets_state_their_size_and_are_refused(tmp_path):
    message = refused(
        [
            "data.name=synthetic",
            "data.options.shape=[3, 32, 32]",
            "model.name=resnet18",
            "fleet.workers=100",
            "training.memory_limit_gb=2",
        ],
        tmp_path / "runs",
    )
    assert "models (100 workers)" in message
    assert "12.5 GiB" in message  # three stacks of 100 x 44.7 MB
    assert "1.9 GiB" in message  # training.memory_limit_gb
    assert "fewer workers" in message


def test_the_estimate_is_printed_before_the_first_round(tmp_path):
    result = dystop("run", *SMALL, "stop.rounds=1", "--no-report", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert result.output.index("models (6 workers)") < result.output.index("round 1/1")


@pytest.mark.parametrize(
    ("word", "needles"),
    [
        ("mechanism.staleness_bound=-1", ["mechanism.staleness_bound", "-1", ">= 0"]),
        ("mechanism.stalenes_bound=1", ["did you mean 'mechanism.staleness_bound'"]),
        ("fleet.workers=0", ["fleet.workers", ">= 1"]),
        ("fleet.workers=many", ["fleet.workers", "an integer"]),
        ("world.range_m=0", ["world.range_m", ">= 0.001"]),
        ("stop.accuracy=1.5", ["stop.accuracy", "<= 1"]),
        ("rounds=5", ["did you mean 'stop.rounds'"]),
        ("model.name=cn", ["model.name", "did you mean 'cnn'"]),
        ("data.name=fmnist-min", ["did you mean 'fmnist-mini'"]),
        ("mechanism.name=dytsop", ["did you mean 'dystop'"]),
        ("mechanism.name=DySTop", ["did you mean 'dystop'"]),
        ("data.name=nowhere.npz", ["nowhere.npz"]),
        ("training.device=tpu", ["training.device", "'auto', 'cpu', 'cuda'"]),
        ("model.name=no.such.module:make", ["no.such.module"]),
        ("fleet.workers=5000000", ["5000000", "samples"]),
        ("data.root=/no/such/folder", ["/no/such/folder"]),
    ],
)
def test_bad_values(tmp_path, word, needles):
    words = ["data.name=fashion-mnist", word] if word.startswith("data.root") else [word]
    message = refused(words, tmp_path / "runs")
    for needle in needles:
        assert needle in message


def test_a_data_set_without_samples(tmp_path):
    empty = np.zeros((0, 1, 8, 8), np.uint8)
    some = np.zeros((4, 1, 8, 8), np.uint8)
    file = tmp_path / "empty.npz"
    np.savez(file, x_train=empty, y_train=[], x_test=some, y_test=[0, 1, 0, 1])
    assert "empty.npz" in refused([f"data.name={file}"], tmp_path / "runs")


@pytest.mark.parametrize("kind", ["a file in the way", "missing experiment file"])
def test_bad_paths(tmp_path, kind):
    if kind == "a file in the way":
        (tmp_path / "file").write_text("")
        result = dystop("run", *SMALL, "--out", str(tmp_path / "file" / "runs"))
    else:
        result = dystop("run", str(tmp_path / "no.toml"), "--out", str(tmp_path / "runs"))
    assert result.exit_code == 2
    one_message(result.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.decode().strip()}")
    try:
        words = [*SMALL, "stop.rounds=300", "--out", str(disk), "--name", "full", "--no-report"]
        result = in_a_process("run", *words)
        assert result.returncode == 3, result.stderr
        message = one_message(result.stderr)
        assert "No space left" in message
        assert "dystop resume" in message
        before = (disk / "full" / "records.jsonl").read_bytes()
        assert before.endswith(b"\n")
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert dystop("resume", str(disk / "full"), "--no-report").exit_code == 0
        after = (disk / "full" / "records.jsonl").read_bytes()
        assert after.startswith(before)
        assert open_run(disk / "full").info["status"] == "finished"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_that_may_not_grow(tmp_path):
    """The kernel refuses to let the record log grow past a limit; this needs no root."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))

    words = ["run", *SMALL, "--out", str(tmp_path), "--name", "small", "--no-report"]
    result = in_a_process(*words, preexec_fn=limit)
    assert result.returncode == 3, result.stderr
    assert "dystop resume" in one_message(result.stderr)
    assert dystop("resume", str(tmp_path / "small"), "--no-report").exit_code == 0
    whole = dystop("run", *SMALL, "--out", str(tmp_path), "--name", "whole", "--no-report")
    assert whole.exit_code == 0
    again = (tmp_path / "small" / "records.jsonl").read_bytes()
    assert again == (tmp_path / "whole" / "records.jsonl").read_bytes()


def test_incomplete_and_missing_folders(tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_text("seed = 1\n")
    for command in ("resume", "verify", "report"):
        half, gone = (dystop(command, str(tmp_path / name)) for name in ("half", "gone"))
        assert (half.exit_code, gone.exit_code) == (2, 2)
        assert f"{tmp_path / 'half'}: " in one_message(half.stderr)
        assert "run.json and fleet.json missing" in half.stderr
        assert "no such folder" in one_message(gone.stderr)
    assert sorted(p.name for p in (tmp_path / "half").iterdir()) == ["config.toml"]
