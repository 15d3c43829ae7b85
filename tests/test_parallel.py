"""Blocks on several cores, and read-only arrays."""

import numpy as np
import pytest

from dystop.parallel import as_readonly, block_size, run_in_blocks


def test_blocks_cover_the_range_once(some_cores):
    seen = np.zeros(1000, int)

    def work(lo, hi):
        seen[lo:hi] += 1

    run_in_blocks(work, 1000, 7)
    run_in_blocks(work, 0, 7)
    assert (seen == 1).all()
    assert block_size(10, 100) == 100
    assert block_size(300, 1) == -(-300 // some_cores)


def test_an_error_in_a_block_is_raised(some_cores):
    def work(lo, hi):
        if lo == 20:
            raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_in_blocks(work, 40, 10)


def test_readonly_views_share_memory_and_are_contiguous():
    own = np.arange(6)
    assert np.shares_memory(as_readonly(own), own)
    assert own.flags.writeable
    assert as_readonly(own[::2]).flags.c_contiguous
