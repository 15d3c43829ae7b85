"""Whole testbeds in this process whose links carry compressed models, updates and differences."""

import pytest

from dystop.config import read_experiment
from dystop.testbed.audit.check import audit_run
from dystop.testbed.setup.preparation import prepare
from dystop.testbed.worker.history import read_event_log
from support.testbed.whole_runs import SMALL, run_in_memory, run_over_grpc

HEADERS = 2500  # bytes of the headers and scales of one payload, at most


def bytes_each(run):
    """Return the mean bytes of a link."""
    return run.records[-1].wire_bytes_total / sum(r.links for r in run.records)


def assert_clean(run):
    assert run.records[-1].accuracy is not None
    assert audit_run(run.path).findings == []


@pytest.mark.parametrize("name", ["d-psgd", "asyng", "gossipfl"])  # models, updates, masked models
def test_eight_bits_are_a_quarter_of_the_bytes(tmp_path, name):
    words = ["aggregation.rule=median"] if name == "gossipfl" else []  # no copies, but masks
    run = run_in_memory(tmp_path, f"mechanism.name={name}", "link.compression=int8", *words)
    codes = (0.1 if name == "gossipfl" else 1.0) * run.fleet["model_parameters"]  # a byte each
    assert 0.9 * codes < bytes_each(run) < codes + HEADERS
    assert_clean(run)


CASES = [("topk", "asyng"), ("randomk", "gossipfl"), ("sign", "d-psgd")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_differences_are_counted_by_what_is_sent(tmp_path, kind, name):
    words = f"mechanism.name={name}", f"link.compression={kind}"
    run = run_in_memory(tmp_path, *words)
    one, whole = run.fleet["model_bytes"], 4 * run.fleet["model_parameters"]
    assert one <= bytes_each(run) < 4 * one + HEADERS  # some receivers catch up
    assert one < whole / 5
    assert_clean(run)
    lines = [
        line
        for file in run.path.glob("workers/*/history.jsonl")
        for line in read_event_log(file)
        if line["kind"] == "published"
    ]
    compressed = [line for line in lines if line["form"].startswith("coded")]
    assert compressed
    assert len(compressed) < len(lines)  # the observer gets whole models


@pytest.mark.parametrize("kind", ["int8", "topk", "randomk", "sign"])
def test_compressed_links_over_grpc(tmp_path, kind):
    run = run_over_grpc(tmp_path, "mechanism.name=d-psgd", f"link.compression={kind}")
    assert len(run.records) == 4
    assert run.fleet["model_bytes"] <= bytes_each(run) < run.fleet["model_bytes"] + HEADERS
    assert_clean(run)


def test_the_limits_of_a_round_allow_for_a_whole_model():
    """A worker that restarts needs whole models, which take as long as they are long."""
    small = prepare(read_experiment(None, [*SMALL, "link.compression=sign"])).enrolment
    assert small.whole_bytes > 20 * small.model_bytes
    plain = prepare(read_experiment(None, SMALL)).enrolment
    assert (plain.model_bytes, plain.whole_bytes) == (small.whole_bytes, 0)
