"""Where machine code is kept, when it is compiled again, and who may write it."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numba
import numpy as np
import pytest
from numba.core import caching

from dystop import compiled as module
from dystop.compiled import (
    INT,
    INTS,
    LockedCache,
    compiled,
    compiled_dense,
    compiled_for,
    source_digest,
)


def test_a_change_of_any_compiling_file_changes_the_folder(tmp_path: Path) -> None:
    kernel, other = tmp_path / "kernel.py", tmp_path / "deep" / "other.py"
    other.parent.mkdir()
    kernel.write_text("from dystop.compiled import compiled\n")
    other.write_text("x = 1\n")
    first = source_digest(tmp_path)
    other.write_text("x = 2\n")
    assert source_digest(tmp_path) == first
    other.write_text("from dystop.compiled import compiled\nx = 2\n")
    second = source_digest(tmp_path)
    other.write_text("from dystop.compiled import compiled\nx = 3\n")
    assert len({first, second, source_digest(tmp_path)}) == 3


def test_other_users_of_numba_keep_their_folder() -> None:
    before = numba.config.CACHE_DIR
    compiled(lambda x: x)
    assert before == numba.config.CACHE_DIR


WHERE = """
import numpy as np
from dystop.kernels.sorting import sort_ids
sort_ids(np.arange(3), np.arange(3))
print(getattr(sort_ids, "_cache", None).cache_path)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_kept_where_changes_would_not_be_noticed(tmp_path: Path, kept: bool) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / ("folder" if kept else "file")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", WHERE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(folder) if kept else "None")


def is_locked(path: Path) -> bool:
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_one_process_at_a_time_writes_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(
        caching.FunctionCache,
        "save_overload",
        lambda self, sig, data: locked.append(is_locked(tmp_path / "lock")),
    )
    LockedCache.__new__(LockedCache).save_overload("signature", b"code")
    assert locked == [True]
    assert not is_locked(tmp_path / "lock")


MISSES = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from dystop.kernels.sorting import sort_ids
for kind in sys.argv[1:]:
    sort_ids(np.arange(3, dtype=kind), np.arange(3))
print(sum(sort_ids.stats.cache_misses.values()))
"""


def test_processes_that_compile_at_once_keep_all_they_compile(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start(*kinds: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MISSES, *kinds]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    kinds = ["int64", "int32", "int16"]
    for process in [start(kind) for kind in kinds]:
        assert process.communicate()[0] == "1\n"
    assert start(*kinds).communicate()[0] == "0\n"


def no_room_for_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def test_a_function_runs_where_there_is_no_room_for_its_machine_code(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", MISSES, "int64"]
    for limit, misses in ((no_room_for_files, 1), (None, 1), (None, 0)):
        done = subprocess.run(
            command, env=env, preexec_fn=limit, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{misses}\n"


def test_dense_sums_keep_nan_and_infinity() -> None:
    @compiled_dense
    def total(x: np.ndarray) -> float:
        out = 0.0
        for k in range(len(x)):
            out += x[k]
        return out

    assert total(np.array([1.0, 2.0, 3.5])) == 6.5
    assert np.isnan(total(np.array([1.0, np.nan])))
    assert total(np.array([1.0, np.inf])) == np.inf


def test_threads_that_call_at_once_compile_a_function_once() -> None:
    """Trainings in threads call a kernel for the first time together."""

    @compiled_for(INTS, INT)
    def shifted(values, by):
        return values + by

    start = Barrier(8)

    def call(by: int) -> int:
        start.wait()
        return int(shifted(np.arange(3), by).sum())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [3 + 3 * by for by in range(8)]
