"""What a comparison runs: decided, and refused, before anything is computed."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.errors import ConfigError
from dystop.runs.building import build
from dystop.studies.compare import Comparison, advice, experiments

SMALL = ("data.name=synthetic", "model.name=softmax", "fleet.workers=6", "stop.rounds=4")


def ask(*mechanisms, words=SMALL, file=None, **more):
    return Comparison(file, words, mechanisms, **more)


def test_runs_differ_in_nothing_but_mechanism_seed_and_law():
    every = experiments(ask("dystop", "fedavg", seeds=2, law="both", words=(*SMALL, "seed=5")))
    assert [e.name for e in every] == [
        "dystop-s5", "fedavg-s5", "dystop-overlap-s5", "fedavg-overlap-s5",
        "dystop-s6", "fedavg-s6", "dystop-overlap-s6", "fedavg-overlap-s6",
    ]  # fmt: skip
    first = every[0]
    assert {
        replace(e, name="", seed=0, mechanism=first.mechanism, engine=first.engine) for e in every
    } == {replace(first, name="", seed=0)}
    assert [e.engine.timing for e in every[:4]] == ["paper", "paper", "overlap", "overlap"]
    (one,) = experiments(ask("dystop", seeds=1, law="testbed", words=SMALL))
    assert (one.name, one.engine.timing) == ("dystop-testbed-s0", "testbed")


def test_one_seed_means_one_fleet_one_split_one_channel_one_initial_model():
    import torch

    dystop, fedavg = (build(e).components for e in experiments(ask("dystop", "fedavg", seeds=1)))
    assert np.array_equal(dystop.fleet.label_counts, fedavg.fleet.label_counts)
    for t, clock in ((1, 0.0), (7, 3.5)):
        a, b = dystop.world.observe(t, clock), fedavg.world.observe(t, clock)
        pairs = [
            {(i, j): s for i, j, s in zip(x.reach.dst, x.reach.src, x.link_s, strict=True)}
            for x in (a, b)
        ]
        both = {k for k in pairs[0] if max(k) < 6} & set(pairs[1])
        assert both
        assert all(pairs[0][k] == pairs[1][k] for k in both)
        assert {k for k in pairs[1] if max(k) < 6} == set(pairs[0])
        assert np.array_equal(a.step_s, b.step_s)
    assert torch.equal(dystop.trainer.initial()[0], fedavg.trainer.initial()[0])


def test_keys_of_one_mechanism():
    every = experiments(ask("dystop", "fedavg", seeds=1, settings=("dystop.V=20",)))
    assert every[0].mechanism.V == 20
    alone = experiments(ask("dystop", seeds=1, words=(*SMALL, "mechanism.V=7")))
    assert alone[0].mechanism.V == 7


def test_a_mechanism_block_in_the_file_belongs_to_the_mechanism_it_names(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('seed = 3\n[mechanism]\nname = "dystop"\nV = 3\nstaleness_bound = 4\n')
    one, other = experiments(
        ask("fedavg", "dystop", file=file, words=(), seeds=1, settings=("dystop.V=9",))
    )
    assert (one.mechanism.name, one.seed) == ("fedavg", 3)
    assert (other.mechanism.V, other.mechanism.staleness_bound) == (9, 4)


REFUSED = {
    "no mechanism": (ask(), "names none; choose from dystop"),
    "unknown mechanism": (ask("dystpo"), "did you mean 'dystop'?"),
    "twice": (ask("dystop", "dystop"), "names 'dystop' twice"),
    "unknown key": (ask("dystop", settings=("dystop.staleness_bond=1",)), "'staleness_bound'?"),
    "not compared": (ask("dystop", settings=("fedavg.participation=1",)), "is not compared"),
    "no value": (ask("dystop", settings=("dystop.V",)), "expected MECHANISM.KEY=VALUE"),
    "no key": (ask("dystop", settings=("V=3",)), "expected MECHANISM.KEY=VALUE"),
    "bad value": (ask("dystop", "fedavg", settings=("dystop.V=-1",)), "a number >= 0"),
    "whose key": (
        ask("dystop", "fedavg", words=("mechanism.V=3",)),
        "--set dystop.V=3",
    ),
    "mechanism.name": (ask("dystop", words=("mechanism.name=fedavg",)), "--mechanisms a,b,c"),
    "name": (ask("dystop", words=("name=x",)), "--name NAME"),
    "two laws": (ask("dystop", words=("engine.timing=paper",), law="both"), "--timing"),
    "measured": (ask("dystop", words=("world.compute.batch_s=measure",)), "batch_s"),
    "shared key": (ask("dystop", words=("stop.round=3",)), "did you mean 'stop.rounds'?"),
    "seed": (ask("dystop", words=(f"seed={2**63 - 1}",)), f"seed = {2**63 - 1} with 3 seeds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_by_name(case):
    asked, fact = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        experiments(asked)
    assert fact in str(caught.value)


def test_advice_asks_for_seconds_instead_of_rounds():
    plain = experiments(ask("dystop", seeds=1))[0]
    assert len(advice(plain)) == 2
    fair = experiments(ask("dystop", words=("stop.seconds=9", "evaluate.every_s=1"), seeds=1))[0]
    assert advice(fair) == []
