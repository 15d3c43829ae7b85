"""Links with a codec in virtual time: lost transfers, crashes and skipped versions are survived."""

from dataclasses import replace

import pytest

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
