"""Where machine code is kept, and when it is made anew."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from dystop.compiled import compiled, compiled_dense
from dystop.forge.kept import fingerprint


def test_a_change_of_any_compiling_file_changes_the_folder(tmp_path: Path) -> None:
    kernel, other = tmp_path / "kernel.py", tmp_path / "deep" / "other.py"
    other.parent.mkdir()
    kernel.write_text("from dystop.compiled import compiled\n")
    other.write_text("x = 1\n")
    first = fingerprint(tmp_path)
    other.write_text("x = 2\n")
    assert fingerprint(tmp_path) == first
    other.write_text("from dystop.compiled import compiled\nx = 2\n")
    second = fingerprint(tmp_path)
    other.write_text("from dystop.compiled import compiled\nx = 3\n")
    assert len({first, second, fingerprint(tmp_path)}) == 3


def test_other_users_of_numba_keep_their_folder() -> None:
    before = numba.config.CACHE_DIR
    compiled(lambda x: x)
    assert before == numba.config.CACHE_DIR


WHERE = """
import numpy as np
from dystop.kernels.random_bits import _mix_words as scramble
scramble(np.zeros(2, np.uint64), np.zeros(2, np.uint64))
print(getattr(scramble, "_cache", None).cache_path)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_kept_where_changes_would_not_be_noticed(tmp_path: Path, kept: bool) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / ("folder" if kept else "file")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", WHERE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(folder) if kept else "None")


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
