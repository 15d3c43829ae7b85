"""A parameter of a part that is not chosen is refused, and who has it is named."""

import tomllib

import pytest

from dystop.config import read_experiment, to_toml
from dystop.config.read import experiment_from
from dystop.errors import ConfigError

UNUSED = {
    "link.compression=sign link.fraction=0.2": (
        "link.fraction = 0.2 is not used with link.compression = 'sign'; it is with 'topk' or "
        "'randomk'"
    ),
    "link.fraction=0.2": "with link.compression = 'none'; it is with 'topk' or 'randomk'",
    "link.step=0.2": "with link.compression = 'none'; it is with",
    "aggregation.rule=clip aggregation.options.trim=0.1": (
        "aggregation.options.trim is not used with aggregation.rule = 'clip'; it is with 'trimmed'"
    ),
    "aggregation.options.trim=0.1": "with aggregation.rule = 'mean'; it is with 'trimmed'",
    "adversary.kind=flip adversary.options.strength=2": (
        "with adversary.kind = 'flip'; it is with 'noise', 'alie', 'ipm' or 'ipm-near'"
    ),
    "adversary.options.strength=2": "with adversary.kind = 'none'; it is with 'noise'",
    "adversary.workers=[1]": "with adversary.kind = 'none'; it is with any other",
    "adversary.share=0.5": "with adversary.kind = 'none'",
    "data.name=fmnist-mini data.options.train=50": "with data.name = 'fmnist-mini'; it is with",
    "data.partition=iid data.phi=0.1": "it is with 'auto', 'dirichlet' or 'quantity'",
    "data.exponent=2": "with data.partition = 'auto'; it is with 'power-law'",
    "data.shards=3": "with data.partition = 'auto'; it is with 'shards'",
    "mechanism.name=d-psgd mechanism.V=3": "mechanism.V is not used with mechanism.name = 'd-psgd'",
    "staleness.rule=hinge staleness.exponent=2": "it is with 'polynomial'",
    "staleness.strength=2": "with staleness.rule = 'none'; it is with 'compensate'",
    "model.lora.rank=3": "with model.adapter = 'none'; it is with 'lora'",
    "privacy.clip=2": (
        "privacy.clip = 2.0 is not used with privacy.noise_multiplier = 0.0; it is with any other"
    ),
    "energy.compute_w=9": "with energy.enabled = false; it is with any other",
    "energy.enabled=true energy.boards=jetson energy.idle_w=9": "it is with 'auto' or 'same'",
    "world.mobility.pause_s=[1,2]": "with world.mobility.enabled = false",
    "testbed.trace=runs/first": "with testbed.links = 'world'; it is with 'trace'",
}


@pytest.mark.parametrize("words", UNUSED)
def test_it_is_refused(words):
    with pytest.raises(ConfigError) as refused:
        read_experiment(None, words.split())
    assert UNUSED[words] in str(refused.value)
    assert str(refused.value).startswith("command line: ")


@pytest.mark.parametrize(
    "words",
    [
        "link.compression=topk link.fraction=0.2 link.step=0.1",
        "link.compression=sign link.fraction=0.1",  # the default says nothing
        "energy.enabled=true energy.boards=same energy.idle_w=9",
        "staleness.rule=hinge staleness.limit=2",
        "data.phi=1.0",
    ],
)
def test_a_used_one_is_read_and_written(words):
    experiment = read_experiment(None, words.split())
    assert experiment_from(tomllib.loads(to_toml(experiment)), [], "again") == experiment


def test_a_word_that_replaces_a_choice_drops_what_the_file_says_for_it():
    file = {"link": {"compression": "topk", "fraction": 0.5}, "model": {"lora": {"rank": 3}}}
    words = ["link.compression=sign", "model.adapter=none"]
    assert experiment_from(file, words, "mine.toml") == read_experiment(None, words[:1])
    with pytest.raises(ConfigError, match=r"command line: link\.fraction = 0\.2 is not used"):
        experiment_from(file, [*words, "link.fraction=0.2"], "mine.toml")


def test_a_file_is_named():
    with pytest.raises(ConfigError, match=r"mine\.toml: link\.fraction = 0\.5 is not used"):
        experiment_from({"link": {"fraction": 0.5}}, [], "mine.toml")
