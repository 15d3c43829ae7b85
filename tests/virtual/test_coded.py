"""Links with a codec in virtual time: lost transfers, crashes and skipped versions are survived."""

from dataclasses import replace

import numpy as np
import pytest

import virtual.cluster
from dystop.mechanisms import BUILT_IN, MECHANISMS
from support.codecs import codec_for
from virtual.build import Case, findings_of, play, random_case, run_facts
from virtual.toy import WIDTH

KINDS = ("topk", "randomk", "sign")
MESSAGES = {kind: codec_for(kind, 0.25, (WIDTH,), 3) for kind in KINDS}


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_mechanism_runs_without_a_refused_model(name):
    codec = MESSAGES[KINDS[len(name) % 3]]
    cluster = play(Case(MECHANISMS[name](), workers=6, rounds=12, codec=codec))
    assert cluster.finished == "12 rounds are over"
    assert findings_of(cluster) == []
    assert {outcome for _, _, outcome in run_facts(cluster).outcomes} == {"DONE"}
    lines = [entry for process in cluster.nodes for entry in process.log_lines]
    assert not [entry for entry in lines if entry["kind"] in ("rejected", "failed")]
    assert any(count == 1 for count in cluster.forms)  # most pulls bring one message


@pytest.mark.parametrize("seed", range(36), ids="seed{}-".format)
def test_faults_lose_no_round_and_no_copy_is_refused(seed):
    """Whatever was lost, what a worker mixes is what its peer has served, by the digest."""
    case = random_case(seed, workers=4, rounds=16)
    cluster = play(replace(case, codec=MESSAGES[KINDS[seed % 3]]))
    assert cluster.finished == "16 rounds are over"
    assert findings_of(cluster) == []
    lines = [entry for process in cluster.nodes for entry in process.log_lines]
    codes = {entry["code"] for entry in lines if entry["kind"] == "rejected"}
    assert not codes & {"digest", "malformed", "size", "schema", "not_finite"}


def test_faults_make_workers_send_whole_copies_and_several_messages():
    forms = set()
    for seed in range(8):
        case = random_case(seed, workers=4, rounds=16)
        forms |= set(play(replace(case, codec=MESSAGES["sign"])).forms)
    assert forms >= {None, 1, 2}


def moved(state):
    """Return the newest model, with the passive mixes of a running training."""
    latest = state.models.latest
    return latest if state.shift is None else latest + state.shift


@pytest.mark.parametrize("kind", ["int8", *KINDS])
@pytest.mark.parametrize("name", ["d-psgd", "matcha", "gossipfl", "ad-psgd"])
def test_mixing_keeps_the_mean_and_brings_models_together(monkeypatch, name, kind):
    """Trainings change nothing but the first models, which are drawn at random."""
    first = np.random.default_rng(5).normal(size=(6, WIDTH)).astype(np.float32)
    monkeypatch.setattr(
        virtual.cluster, "train", lambda vector, node, number, *_: vector if number else first[node]
    )
    codec = replace(codec_for(kind, 0.25, (WIDTH,), 3), keeps_mean=True)
    cluster = play(Case(MECHANISMS[name](), workers=6, rounds=60, codec=codec))
    assert findings_of(cluster) == []
    states = [process.disk for process in cluster.nodes]
    models = np.stack([moved(s) for s in states])
    mean = first.mean(0, dtype=np.float64)
    assert np.abs(models.mean(0, dtype=np.float64) - mean).max() < 1e-6
    assert np.abs(models - mean).max() < 0.5 * np.abs(first - mean).max()
