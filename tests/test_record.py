"""Round records as lines of JSON."""

import json
from dataclasses import fields

import pytest

from dystop.record import RoundRecord, from_json
from dystop.recorders import read_record
from dystop.recorders.positions import Positions
from dystop.recorders.topology import Topology
from support.fake_runs import changed


def record(**more):
    """Return a record of zeros, with other values where given."""
    values = {f.name: 0 for f in fields(RoundRecord)}
    optional = dict.fromkeys((f.name for f in fields(RoundRecord) if f.default is None), None)
    empty = {"staleness_histogram": [3], "notes": {}, "added": {}}
    return changed(RoundRecord(**values | optional | empty), **more)


def test_a_record_is_one_line_that_can_be_read_back():
    one = record(round=4, clock_s=1.25, loss=None, accuracy=0.5, link_pairs=[[0, 1]])
    line = one.to_json()
    assert "\n" not in line
    assert from_json(line) == one
    assert "loss" not in json.loads(line)
    assert "positions" not in json.loads(line)


def test_lines_that_are_no_records_are_refused():
    for line in ("[]", "{}", '{"round":1}', "not json", '"text"'):
        with pytest.raises(ValueError):
            from_json(line)
    with pytest.raises(ValueError):
        record(clock_s=float("nan")).to_json()


def test_results_of_workers_are_numbers_or_missing():
    one = record(worker_accuracy=[0.5, None], worker_loss=[1, None])
    assert from_json(one.to_json()) == one
    for bad in (["0.5"], [[0.5]], {"0": 0.5}, 0.5, [True]):
        with pytest.raises(ValueError, match="worker_accuracy"):
            from_json(record(worker_accuracy=bad).to_json())


def test_the_loss_of_models_that_diverge_is_read_back():
    one = record(loss=2.45e29, test_loss=1e300)
    assert from_json(one.to_json()) == one
    for bad in ({"loss": 10**30}, {"loss": True}, {"round": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            from_json(json.dumps(json.loads(record(round=2).to_json()) | bad))


def test_fields_of_an_unknown_recorder_are_kept():
    line = json.dumps(json.loads(record(round=2).to_json()) | {"new_field": 1})
    assert from_json(line).get("new_field") == 1
    assert json.loads(from_json(line).to_json()) == json.loads(line)


def test_a_group_is_read_back_or_refused():
    one = read_record(record(link_pairs=[[0, 1]], active_ids=[0]).to_json())
    assert one.group(Topology) == Topology([0], [[0, 1]])
    assert one.group(Positions) is None
    for bad in ("[]", {"0": 1}, 3, True):
        with pytest.raises(ValueError, match="link_pairs"):
            read_record(record(link_pairs=bad).to_json())


def test_a_record_without_required_fields_is_refused():
    """A truncated line that is valid JSON is not a record."""
    with pytest.raises(ValueError):
        from_json('{"round":1,"clock_s":2.0}')
