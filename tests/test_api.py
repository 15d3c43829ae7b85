"""`dystop.simulate`: mistakes are named before anything is trained."""

import pytest

import dystop
from dystop.errors import ConfigError
from dystop.training.models.build import build_model

SMALL = ["model.name=softmax"]


def small(mechanism, **more):
    more.setdefault("overrides", SMALL)
    return dystop.simulate(mechanism, workers=4, dataset="synthetic", rounds=2, **more)


def test_an_object_and_its_name_give_the_same_run():
    by_object = [r.to_json() for r in small(dystop.DySTop(V=10.0))]
    assert by_object == [r.to_json() for r in small("dystop")]
    assert by_object == [r.to_json() for r in small(dystop.DySTop(V=10))]


def test_iterating_again_runs_again():
    run = small("dystop")
    assert [r.to_json() for r in run] == [r.to_json() for r in run]
    assert len(run.records) == 2
    assert "range" in run.physics["area"]


@pytest.mark.parametrize(
    ("mechanism", "more", "message"),
    [
        (dystop.DySTop(V=-1), {}, "mechanism.V = -1"),
        (dystop.DySTop(V="x"), {}, "mechanism.V"),
        (dystop.DySTop, {}, "mechanism object such as"),
        ("nope", {}, "mechanism.name"),
        (dystop.DySTop(), {"overrides": ["mechanism.V=5"]}, "set it on the object"),
        ("dystop", {"overrides": "model.name=softmax"}, "list of 'key=value'"),
        ("dystop", {"overrides": [3]}, "list of 'key=value'"),
    ],
)
def test_mistakes(mechanism, more, message):
    with pytest.raises(ConfigError, match=message):
        small(mechanism, **more)


@pytest.mark.parametrize("mechanism", ["dystop", "matcha", "asydfl", "sa-adfl"])
def test_a_stand_in_has_the_plans_the_clock_and_the_traffic_of_the_large_model(mechanism):
    def seen(*words):
        run = small(mechanism, overrides=list(words))
        return [(r.clock_s, r.wire_bytes, r.link_pairs, r.active_ids) for r in run]

    width = sum(p.numel() for p in build_model("mlp", 1, (8, 8), 10, seed=0).parameters())
    large = seen("model.name=mlp")
    assert seen("model.name=softmax", f"model.wire_bytes={4 * width}") == large
    assert seen("model.name=softmax") != large
