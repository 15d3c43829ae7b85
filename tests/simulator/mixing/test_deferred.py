"""Mixes that wait give the models of one mix after another, and run before their rows are read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.acceleration import kernel_at
from dystop.plan import mix_of
from dystop.simulator.mixing import deferred
from dystop.simulator.mixing.deferred import FEW_ROWS, Sequence, mix_sequence
from dystop.simulator.mixing.stage import Sources, mixed_rows
from dystop.simulator.model_stack import first_models, write_rows
from dystop.simulator.waves import queue_of
from dystop.sparse import ints
from support.engine_fixtures import AddingTrainer

NODES, WIDTH = 7, 3
TRAINER = AddingTrainer(width=WIDTH)


def models_of(draw, snapshots=4):
    zeros, counters = torch.zeros(WIDTH), torch.zeros(1, dtype=torch.int64)
    models = first_models(zeros, counters, NODES, late=False, deltas=False)
    models.latest[:] = torch.from_numpy(draw.normal(size=(NODES, WIDTH)).astype(np.float32))
    for number in range(snapshots):
        models.snapshots[number] = torch.from_numpy(draw.normal(size=WIDTH).astype(np.float32))
    return models


def queued(models):
    copied = replace(models, latest=models.latest.clone(), snapshots=dict(models.snapshots))
    return replace(copied, trainings=queue_of(copied, AddingTrainer(width=WIDTH)))


def random_stage(draw):
    receivers = draw.permutation(NODES)[: draw.integers(1, FEW_ROWS + 2)]
    dst = np.repeat(receivers, draw.integers(0, 4, len(receivers)))
    keys = np.unique(np.append(dst * NODES + draw.integers(0, NODES, len(dst)), receivers[0] * 8))
    stage = mix_of(keys // NODES, keys % NODES, draw.normal(size=len(keys)))
    mailed = (stage.source != stage.dst) & (draw.random(len(keys)) < 0.4)
    none = np.zeros(len(keys), bool)
    snapshot = np.where(mailed, draw.integers(0, 4, len(keys)), -1)
    return stage, Sources(~mailed, none, mailed, snapshot, np.zeros(len(stage.receiver), bool))


def mix_now(models, stage, sources):
    rows, passive = mixed_rows(models, stage, sources), np.ones(len(stage.receiver), bool)
    write_rows(models, stage.receiver, rows, passive, sources.busy)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_mixes_that_wait_are_those_of_one_after_another(seed, count):
    draw = np.random.default_rng(seed)
    models = models_of(draw)
    later = queued(models)
    for _ in range(count):
        stage, sources = random_stage(draw)
        mix_now(models, stage, sources)
        if not later.trainings.mix_later(stage, sources):
            assert len(stage.receiver) > FEW_ROWS
            mix_now(later, stage, sources)
    later.trainings.run_mixes()
    assert torch.equal(later.latest, models.latest)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_the_kernel_equals_its_reference(seed):
    draw = np.random.default_rng(seed)
    first_row = np.append(0, np.cumsum(draw.integers(1, 4, draw.integers(1, 5))))
    rows = int(first_row[-1])
    sizes = draw.integers(0, 4, 2 * rows)
    ends = np.append(0, np.cumsum(sizes))
    column = draw.integers(0, NODES, ends[-1])
    numbers = (first_row, draw.integers(0, NODES, rows), ends[::2], ends[1::2], column)
    weight = draw.normal(size=ends[-1]).astype(np.float32)
    stack, mail = draw.normal(size=(2, NODES, 9000)).astype(np.float32)
    results = []
    for function in (kernel_at(mix_sequence.path), mix_sequence.reference):
        out, scratch = stack.copy(), np.empty((3, 9000), np.float32)
        function(numbers, weight, out, mail, scratch, 10, 8990)
        results.append(out)
    assert np.array_equal(*results)


def test_a_mix_waits_until_its_row_is_read():
    models = queued(models_of(np.random.default_rng(0)))
    before, none = models.latest.clone(), np.zeros(2, bool)
    pair = mix_of(ints([1, 1]), ints([1, 2]), np.full(2, 0.5))
    assert models.trainings.mix_later(pair, Sources(~none, none, none, ints([-1, -1]), none[:1]))
    models.trainings.finish(ints([0, 2]))  # reads another row
    assert torch.equal(models.latest, before)
    models.trainings.finish(ints([1]))
    assert torch.allclose(models.latest[1], (before[1] + before[2]) / 2)


def test_a_training_starts_from_the_mix_before_it_and_a_mix_from_the_training_before_it():
    models = queued(models_of(np.random.default_rng(0)))
    before, one, none = models.latest.clone(), np.ones(1, np.int64), np.zeros(1, bool)
    source = Sources(~none, none, none, -one, none)
    assert models.trainings.mix_later(mix_of(ints([1]), ints([2]), np.ones(1)), source)
    models.trainings.train(models, TRAINER, ints([1]), one, one, None)
    assert models.trainings.mix_later(mix_of(ints([3]), ints([1]), np.ones(1)), source)
    models.trainings.run("models are needed")
    assert not torch.equal(models.latest[1], before[2])  # trained
    assert torch.equal(models.latest[3], models.latest[1])


@pytest.mark.parametrize("limit", ["MAX_STAGES", "MAX_MAIL_BYTES"])
def test_what_waits_is_bounded(limit, monkeypatch):
    monkeypatch.setattr(deferred, limit, {"MAX_STAGES": 3, "MAX_MAIL_BYTES": 5}[limit])
    models = queued(models_of(np.random.default_rng(0)))
    mixes, mailed = models.trainings._mixes, np.array([False, True])
    source = Sources(~mailed, np.zeros(2, bool), mailed, ints([-1, 2]), np.zeros(1, bool))
    most = 0
    for k in range(5):
        models.trainings.mix_later(mix_of(ints([k, k]), ints([k, 6]), np.full(2, 0.5)), source)
        most = max(most, len(mixes))
    assert most == {"MAX_STAGES": 2, "MAX_MAIL_BYTES": 0}[limit]


def test_the_largest_stage_counts():
    sequence = Sequence(ints([0, 1, 4, 6]), *[ints([])] * 4, np.zeros(0))
    assert sequence.most_rows == 3
