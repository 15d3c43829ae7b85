import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.training.local_steps.batches import batches, epoch_order
from dystop.training.samples import shards_of


def arrays(*values):
    return [np.array(v, np.int64) for v in values]


def walk(seed, worker, version, steps, size, batch):
    """The mini-batches of one worker, written as the words say."""
    out, epoch = [], 0
    while len(out) < steps and size:
        order = epoch_order(seed, *arrays([worker], [version]), epoch, np.array([size]))[0]
        out += [order[k : k + batch].tolist() for k in range(0, size, batch)]
        epoch += 1
    return out[:steps]


row = st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 9), st.integers(0, 20))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(row, min_size=1, max_size=6), st.integers(1, 7), st.integers(0, 99))
def test_many_workers_at_once_equal_each_one_alone(rows, batch, seed):
    workers, versions, steps, sizes = arrays(*zip(*rows, strict=True))
    plan = batches(seed, workers, versions, steps, sizes, batch)
    for i, (worker, version, step, size) in enumerate(rows):
        want = walk(seed, worker, version, step, size, batch)
        got = [line[line >= 0].tolist() for line in plan.positions[i]]
        assert [line for line in got if line] == want
        assert plan.counts[i, : len(want)].tolist() == [len(line) for line in want]
        assert not plan.counts[i, len(want) :].any()


def test_one_epoch_sees_every_sample_once_and_the_next_one_again_in_another_order():
    sizes = np.array([70, 32, 5])
    steps = -(-sizes // 32)
    three = np.arange(3)
    plan = batches(1, three, three * 0, 2 * steps, sizes, 32)
    for i, size in enumerate(sizes):
        first, second = plan.positions[i, : steps[i]], plan.positions[i, steps[i] : 2 * steps[i]]
        assert sorted(first[first >= 0]) == sorted(second[second >= 0]) == list(range(size))
        assert first[first >= 0].tolist() != second[second >= 0].tolist()
    assert plan.counts[0].tolist() == [32, 32, 6, 32, 32, 6]


def test_order_has_an_address():
    sizes = np.array([40])
    here = epoch_order(0, *arrays([3], [5]), 0, sizes)
    assert (here == epoch_order(0, *arrays([3], [5]), 0, sizes)).all()
    for seed, worker, version, epoch in [(1, 3, 5, 0), (0, 4, 5, 0), (0, 3, 6, 0), (0, 3, 5, 1)]:
        assert (here != epoch_order(seed, *arrays([worker], [version]), epoch, sizes)).any()


def test_lookup_maps_positions_to_the_workers_own_samples():
    shards = shards_of(arrays([10, 11, 12], [], [5, 6]), available=20)
    assert shards.sizes.tolist() == [3, 0, 2]
    found = shards.lookup(np.array([2, 0]), np.array([[[1, 0]], [[2, -1]]]))
    assert found.tolist() == [[[6, 5]], [[12, 12]]]  # padding repeats the batch's first sample
    assert shards.lookup(np.array([1]), np.array([[[-1, -1]]])).shape == (1, 1, 2)
