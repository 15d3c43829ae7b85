"""Make the run folders of `tests/compatibility`: what earlier releases have left on people's disks.

    python scripts/make_compatibility_runs.py tests/compatibility

The archives in the repository were made with commit b6d154b (release 0.1.0) and are not made again.
They show that a later release can read, verify, resume, check, replay and report what 0.1.0 wrote.
A new archive gets a new name and is made with the release whose name it carries.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SMALL = ["model.name=softmax", "data.name=synthetic", "data.synthetic.train=800"]
TEST = ["data.synthetic.test=100", "evaluate.every_s=0", "evaluate.every_rounds=3"]
FLEET = ["fleet.workers=80", "stop.rounds=10", "seed=5", "world.range_m=40"]
LAWS = {
    "paper-eager": ["engine.timing=paper", "engine.publish=eager"],
    "overlap-on_completion": ["engine.timing=overlap", "engine.publish=on_completion"],
}
INTERRUPTED = [
    "mechanism.name=asydfl",  # mail on its way, snapshots of models
    *LAWS["overlap-on_completion"],
    *SMALL,
    *TEST,
    "fleet.workers=80",
    "seed=5",
    "stop.rounds=12",
    "output.checkpoint_every=4",
    "world.churn.enabled=true",
    "world.mobility.enabled=true",
    "world.outages.loss=0.05",
]
TESTBED = [
    "fleet.workers=4",
    "stop.rounds=60",
    *SMALL,
    "data.synthetic.test=100",
    "world.compute.batch_s=0.05",
    "world.range_m=80",
]


def dystop(*words: str, **more: object) -> "subprocess.Popen[bytes]":
    """Start a command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "dystop", *words], **more)  # type: ignore[call-overload]


def make_runs(out: Path) -> None:
    """Every mechanism under two pairs of laws, at a size that takes the compiled paths."""
    from dystop.mechanisms import BUILT_IN

    for law, keys in LAWS.items():
        for name in BUILT_IN:
            words = [f"mechanism.name={name}", *keys, *FLEET, *SMALL, *TEST, "output.models=none"]
            more = ["--out", str(out), "--name", f"{name}--{law}", "--quiet", "--no-report"]
            assert dystop("run", *words, *more).wait() == 0, name
            shutil.rmtree(out / f"{name}--{law}" / "checkpoints", ignore_errors=True)


def make_interrupted(out: Path) -> None:
    """A run stopped in the middle, beside the same run to its end."""
    from dystop.experiments import run
    from dystop.experiments.config import read_experiment

    def stop_after_seven(record: object) -> None:
        if record.round == 7:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)

    experiment = read_experiment(None, INTERRUPTED)
    run.run_experiment(experiment, out, "whole", lambda _: None, lambda _: None)
    shutil.rmtree(out / "whole" / "checkpoints")
    shutil.rmtree(out / "whole" / "models", ignore_errors=True)
    with contextlib.suppress(KeyboardInterrupt):
        run.run_experiment(experiment, out, "interrupted", lambda _: None, stop_after_seven)
    checkpoints = sorted((out / "interrupted" / "checkpoints").iterdir())
    for old in checkpoints[:-1]:
        old.unlink()


def make_testbed(out: Path) -> None:
    """A run of the testbed, interrupted between two rounds."""
    keys = [*TESTBED, "--out", str(out), "--name", "testbed", "--no-report", "--quiet"]
    process = dystop("testbed", "--transport", "memory", *keys, start_new_session=True)
    records = out / "testbed" / "records.jsonl"
    while not records.is_file() or records.read_bytes().count(b"\n") < 12:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    shutil.rmtree(out / "testbed" / "backups", ignore_errors=True)


def scrub(folder: Path) -> None:
    """Leave out what tells about the machine."""
    for path in folder.rglob("run.json"):
        info = json.loads(path.read_text())
        info["machine"] = {"platform": "Linux", "machine": "x86_64", "threads": 2}
        path.write_text(json.dumps(info, indent=2) + "\n")


def pack(folder: Path, target: Path) -> None:
    """Write a folder as an archive that is the same on every machine."""
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(folder)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            with path.open("rb") if path.is_file() else open(os.devnull, "rb") as file:
                archive.addfile(entry, file if path.is_file() else None)


def main(target: Path) -> None:
    """Make all archives."""
    target.mkdir(parents=True, exist_ok=True)
    made = {"runs": make_runs, "interrupted": make_interrupted, "testbed": make_testbed}
    for name, make in made.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            scrub(Path(folder))
            pack(Path(folder), target / f"{name}-0.1.0.tar.xz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
