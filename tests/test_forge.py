"""Machine code made ahead: complete, by one process each, and never in anybody's way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dystop.forge import claims, kept, signatures, start, work
from dystop.forge.claims import Claims

HERE = Path(__file__).parent / "support"
SCRAMBLE, TO_UNIT = (
    json.dumps(["dystop.kernels.random_bits", name, kinds])
    for name, kinds in (("scramble", ["uint64[:]"]), ("to_unit", ["uint64[:]", "float64[:]"]))
)
MISSING = json.dumps(["dystop.kernels.random_bits", "nothing", []])


def python(folder, script, *words, **more):
    """A process with its machine code in a folder of its own."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "MPLCONFIGDIR": str(folder)}
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, **more)


def said(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.split()


# What is compiled


@pytest.mark.slow
def test_the_list_holds_what_runs_compile_and_nothing_else():
    command = [sys.executable, str(HERE / "jit_signatures.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    advice = "bring the list up to date with: python tests/support/jit_signatures.py --write"
    assert sorted(done.stdout.splitlines()) == sorted(signatures.read()), advice


@pytest.mark.parametrize("line", signatures.read())
def test_a_line_says_all_about_its_arguments(line):
    assert signatures.line_of(*signatures.function_of(line)) == line


def test_arrays_that_are_not_contiguous_have_no_place():
    from numba import types

    with pytest.raises(ValueError, match="contiguous"):
        signatures.written(types.Array(types.int64, 1, "A"))


def test_what_needs_torch_is_one_job_and_only_for_a_cpu():
    jobs = work.jobs_of([start.TRAINING], 8)
    assert all(map(start.is_training, jobs[0]))
    assert len(jobs[0]) > 1
    assert sum(map(len, jobs)) == len(signatures.read())
    assert work.jobs_of([], 8) == jobs[1:]


def test_fonts_come_last_where_cores_are_few():
    assert work.jobs_of([start.FONTS], 8)[0] == work.jobs_of([start.FONTS], 1)[-1] == [start.FONTS]


# Who compiles

HOLD = """
import sys, time
from pathlib import Path
from dystop.forge.claims import Claims
mine = Claims(Path(sys.argv[1]))
print(mine.claim("it", 0.0), flush=True)
time.sleep(60)
"""


def test_a_claim_ends_with_its_holder(tmp_path):
    mine = Claims(tmp_path)
    other = python(tmp_path, HOLD, tmp_path)
    assert other.stdout.readline() == "True\n"
    assert not mine.claim("it", 0.02)
    assert mine.claim("something else", 0.0)
    other.kill()
    assert mine.claim("it", 10.0)
    third = python(tmp_path, HOLD, tmp_path)
    assert third.stdout.readline() == "False\n"
    for process in (other, third):
        process.kill()
        process.communicate()


def test_a_claim_can_be_dropped(tmp_path):
    mine = Claims(tmp_path)
    with mine.held("it"):
        pass
    other = python(tmp_path, HOLD, tmp_path)
    assert other.stdout.readline() == "True\n"
    other.kill()
    other.communicate()


def test_nobody_waits_where_there_are_no_locks(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    nowhere = Claims(tmp_path / "file")
    assert nowhere.claim("it")
    nowhere.drop("it")
    monkeypatch.setattr(claims, "_locks", None)
    assert Claims(tmp_path).claim("it")


CALL = """
import numpy as np
from dystop.kernels.sorting import sort_ids
sort_ids(np.arange(3), np.arange(3))
print(sum(sort_ids.stats.cache_misses.values()))
"""


def test_of_two_processes_one_compiles(tmp_path):
    both = [python(tmp_path, CALL) for _ in range(2)]
    assert sorted(map(said, both)) == [["0"], ["1"]]


DIVIDE = """
import sys
from dystop.forge import signatures, work
from pathlib import Path
signatures.FILE = Path(sys.argv[1])
work.main(["2"])
from dystop.forge.kept import folder, marker
print(marker(signatures.read()).exists(), len(list(folder().rglob("*.nbi"))))
"""


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        ([SCRAMBLE, TO_UNIT], ["True", "3"]),  # with what they call
        ([SCRAMBLE, MISSING, TO_UNIT], ["False", "3"]),
    ],
)
def test_a_failure_leaves_the_rest_and_no_mark(tmp_path, lines, seen):
    listed = tmp_path / "lines"
    listed.write_text("\n".join(lines))
    assert said(python(tmp_path, DIVIDE, listed)) == seen


def test_a_second_one_is_not_needed(tmp_path, monkeypatch):
    holder = python(tmp_path, HOLD.replace('"it"', f'"{work._WHOLE}"'), tmp_path)
    assert holder.stdout.readline() == "True\n"
    monkeypatch.setattr(work, "folder", lambda: tmp_path)
    monkeypatch.setattr(work, "jobs_of", lambda *args: pytest.fail("it began to work"))
    work.main(["2"])
    holder.kill()
    holder.communicate()


# Beside a command


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """What was started; nothing really is."""
    found = []
    monkeypatch.setattr(start, "_beside", [])
    monkeypatch.setattr(start, "_DEVICES", (tmp_path,))  # as if there were a GPU
    monkeypatch.setattr(start.atexit, "register", lambda call: None)
    monkeypatch.setattr(start, "_launch", lambda *how: found.append(how))
    for module in (start, kept):
        monkeypatch.setattr(module, "folder", lambda: tmp_path / "deep" / "down")
    for name in ("NUMBA_DISABLE_JIT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "seed=1"], [start.FONTS]),
        (["resume", "runs/a", "--no-report"], []),
        (["run", "training.device=cpu"], [start.TRAINING, start.FONTS]),
        (["verify", "runs/a"], []),
        (["testbed", "training.device=cpu"], [start.TRAINING]),
    ],
)
def test_a_command_is_helped_once(launched, words, parts):
    start.start(words, 16)
    start.start(words, 16)
    assert launched == [(14, parts)]


@pytest.mark.parametrize(("cores", "compilers"), [(2, 2), (4, 2), (8, 6)])
def test_all_cores_but_two_compile(launched, cores, compilers):
    start.start(["run"], cores)
    assert launched[0][0] == compilers


def test_a_single_core_is_left_to_the_command(launched):
    start.start(["run"], start.FEWEST_CORES - 1)
    assert launched == []


def test_nothing_starts_when_all_is_there(launched):
    there = kept.marker(start.chosen([]))
    there.parent.mkdir(parents=True)
    there.touch()
    start.start(["run"], 16)
    assert launched == []
    start.start(["run", "training.device=cpu"], 16)  # needs more
    assert len(launched) == 1


def test_nothing_starts_when_nothing_can_be_kept_or_compiled(launched, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        start.start(["run"], 16)
    (tmp_path / "deep").touch()
    start.start(["run"], 16)
    assert launched == []


def test_too_many_processes_are_no_reason_to_fail(launched, monkeypatch):
    def refuse(*how):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(start, "_launch", refuse)
    start.start(["run"], 16)
    assert start._beside == []


PARENT = """
import time
from dystop.forge import start
start.start(["run", "training.device=cpu"], 4)
print(start._beside[0].pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_the_compilers_end_with_the_command(tmp_path, way):
    parent = python(tmp_path, PARENT)
    family = [int(parent.stdout.readline())]
    listed = Path(f"/proc/{family[0]}/task/{family[0]}/children")
    until = time.monotonic() + 30
    while len(family) < 3 and time.monotonic() < until:
        time.sleep(0.02)
        family = [family[0], *map(int, listed.read_text().split())]
    assert len(family) == 3
    parent.send_signal(way)
    parent.communicate()
    while any(map(_is_alive, family)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(_is_alive, family))


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and nobody has asked yet


def test_dismissing_ends_it(monkeypatch):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    monkeypatch.setattr(start, "_beside", [process])
    start.dismiss()
    assert process.returncode == -signal.SIGKILL
