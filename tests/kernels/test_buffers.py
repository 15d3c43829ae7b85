"""Memory of large arrays is reused."""

import numpy as np
import pytest

from dystop.kernels import buffers


@pytest.fixture
def kept_blocks(monkeypatch):
    """Count arrays of a kilobyte as large; return the blocks that the module keeps."""
    monkeypatch.setattr(buffers, "LARGE_BYTES", 1000)
    monkeypatch.setattr(buffers, "_blocks", [])
    return buffers._blocks


def test_memory_is_reused_only_without_references(kept_blocks):
    first, second = buffers.buffer(500, np.int64), buffers.buffer(500, np.float64)
    first[:], second[:] = 1, 2.0
    assert len(kept_blocks) == 2
    part = first[3:9].reshape(2, 3)
    del first
    third = buffers.buffer(500, np.int64)
    third[:] = 3
    assert len(kept_blocks) == 3
    assert (part == 1).all()
    assert (second == 2.0).all()
    del part
    fourth = buffers.buffer(490, np.int64)  # a slightly smaller array fits
    fourth[:] = 4
    assert len(kept_blocks) == 3
    assert (third == 3).all()
    assert (second == 2.0).all()


def test_unused_memory_is_released(kept_blocks):
    buffers.buffer(500, np.int64)  # no reference remains
    for _ in range(50):
        buffers.buffer(5000, np.int64)
    assert [len(block.memory) // 1000 for block in kept_blocks] == [41]


def test_small_arrays_are_not_kept(kept_blocks):
    assert buffers.buffer(10, np.bool_).base is None
    assert not kept_blocks
