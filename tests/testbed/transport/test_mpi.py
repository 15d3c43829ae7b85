"""The MPI transport under mpiexec: a process can initialise MPI only once."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dystop.errors import TransportError
from dystop.folders.run_folder import open_run
from dystop.testbed.transport.mpi_endpoint import names_by_rank
from dystop.testbed.transport.mpi_router import parse_address

TESTS = Path(__file__).parents[2]
SCRIPTS = TESTS / "support" / "testbed"
BESIDE = str(Path(sys.executable).parent)
ROOT_TOO = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpiexec() -> str | None:
    """Return the launcher; one beside this Python comes first."""
    return shutil.which("mpiexec", path=BESIDE + os.pathsep + os.environ.get("PATH", ""))


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpiexec() is None,
    reason="needs mpi4py and mpiexec",
)


def under_mpi(ranks: int, *words: str, timeout_s: float = 120.0, **env: str) -> str:
    """Run a Python program under mpiexec; return its output."""
    launcher = mpiexec()
    assert launcher is not None
    more = ["--oversubscribe"] if _is_open_mpi(launcher) else []
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [launcher, *more, "-n", str(ranks), sys.executable, *words],
        env={**os.environ, **ROOT_TOO, "PYTHONPATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def _is_open_mpi(launcher: str) -> bool:
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    return "Open" in version.stdout


@needs_mpi
def test_sessions_and_pulls_over_mpi():
    tests = [
        str(Path(__file__).with_name("test_sessions.py")),
        str(Path(__file__).with_name("test_pulls.py")),
    ]
    output = under_mpi(
        1, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, DYSTOP_TEST_MPI="1"
    )
    assert "failed" not in output
    assert "[100%]" in output


@needs_mpi
def test_three_ranks_exchange_messages_and_models():
    output = under_mpi(3, str(SCRIPTS / "mpi_ranks.py"))
    fine = re.compile(r"rank \d is fine")  # mpiexec may move the line ends
    assert sorted(fine.findall(output)) == [f"rank {k} is fine" for k in range(3)]
    assert fine.sub("", output).strip() == ""


@needs_mpi
def test_a_rank_that_dies_ends_the_job(tmp_path):
    program = tmp_path / "dying.py"
    program.write_text(
        "import os, time\n"
        "from dystop.testbed.transport.mpi_endpoint import join_job\n"
        "line = join_job()\n"
        "os.write(1, f'joined {line.size}\\n'.encode())  # at once: ranks share the output\n"
        "if line.rank == 1:\n"
        "    os._exit(3)\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(AssertionError, match="joined 2"):
        under_mpi(2, str(program), timeout_s=30.0)


@needs_mpi
def test_the_testbed_under_mpiexec(tmp_path):
    words = ["fleet.workers=3", "stop.rounds=3", "data.name=synthetic", "model.name=softmax"]
    words += ["data.options.train=200", "data.options.test=50", "--out", str(tmp_path)]
    words += ["--name", "job", "--no-report", "--quiet"]
    under_mpi(4, "-m", "dystop", "testbed", "--transport", "mpi", *words)
    run = open_run(tmp_path / "job")
    assert run.info["status"] == "finished"
    assert [record.round for record in run.records] == [1, 2, 3]
    assert run.records[-1].accuracy is not None


SMALL = [
    "fleet.workers=1", "stop.rounds=9999", "data.name=synthetic", "model.name=softmax",
    "data.options.train=200", "data.options.test=50", "testbed.time_scale=0.1",
]  # fmt: skip


@contextmanager
def running_job(out: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a testbed of one worker under mpiexec in its own session; end all its processes."""
    words = ["testbed", "--transport", "mpi", *SMALL, "--out", str(out), "--name", "job"]
    words += ["--no-report", "--quiet"]
    with subprocess.Popen(
        [str(mpiexec()), "-n", "2", sys.executable, "-m", "dystop", *words],
        env={**os.environ, **ROOT_TOO},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            yield job
        finally:
            for pid in [job.pid, *processes_with(str(out))]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes_with(word: str) -> list[int]:
    """Return the processes that have a word in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word in (process / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(process.name))
    return found


def wait_for(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["folder", "round"])
def test_an_interrupted_job_prints_the_command_to_resume(tmp_path, moment):
    """The folder exists long before the other rank has imported its modules."""
    folder = tmp_path / "job"
    records, size = folder / "records.jsonl", int(moment == "round")
    with running_job(tmp_path) as job:
        wait_for(lambda: records.exists() and records.stat().st_size >= size)
        job.send_signal(signal.SIGINT)
        output, _ = job.communicate(timeout=1200)
        assert f"mpiexec -n 2 dystop testbed --resume {folder}" in output
        assert job.returncode == 130
        assert processes_with(str(tmp_path)) == []
    assert open_run(folder).info["status"] in ("interrupted", "running")  # as after kill -9


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.0, 1.5])
def test_an_interrupt_while_the_job_starts_ends_it(tmp_path, after_s):
    """The ranks may still be importing their modules."""
    with running_job(tmp_path) as job:
        time.sleep(after_s)
        job.send_signal(signal.SIGINT)
        if after_s < 0.4:  # mpiexec itself may not have been ready: a user presses Ctrl-C again
            time.sleep(1.0)
            job.send_signal(signal.SIGINT)
        try:
            job.communicate(timeout=120)
        except subprocess.TimeoutExpired as hung:
            if "Exception ignored" not in str(
                hung.output
            ):  # raised by Python before our first line ran
                raise
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=1200)
        assert job.returncode != 0
        assert processes_with(str(tmp_path)) == []


def test_the_error_without_mpi4py_names_the_extra():
    program = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from dystop.errors import TransportError\n"
        "from dystop.testbed.transport.mpi_endpoint import join_job\n"
        "try: join_job()\n"
        "except TransportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=True
    )
    assert "pip install 'dystop[mpi]'" in done.stdout


def test_ranks_and_addresses():
    with pytest.raises(TransportError, match="mpiexec -n 4 dystop testbed"):
        names_by_rank(["w00", "w01", "w02"], 3)
    assert parse_address("12:3") == (12, 3)
    assert parse_address("127.0.0.1:3") == (-1, 0)
