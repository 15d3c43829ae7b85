"""The public API as a third party uses it: `import dystop`, and the conformance kit for tests."""

import math
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.conformance import check_mechanism
from dystop.units import seconds
from dystop.world import WorldParams

SMALL = {"workers": 4, "dataset": "synthetic", "model": "softmax", "rounds": 2}


def small(mechanism="dystop", **more):
    return dystop.simulate(mechanism, **{**SMALL, **more})


def lines(simulation):
    return [record.to_json() for record in simulation]


def arrays(train=40, test=12, classes=3):
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.random((train, 5)).astype(np.float32),
        "y_train": np.arange(train) % classes,
        "x_test": rng.random((test, 5)).astype(np.float32),
        "y_test": np.arange(test) % classes,
    }


@dataclass(frozen=True)
class NearestPull(dystop.Mechanism):
    """Every worker pulls from its nearest neighbours."""

    name: ClassVar[str] = "nearest-pull"
    provenance: ClassVar[str] = "example"
    summary: ClassVar[str] = "pull from near neighbours"

    neighbours: int = dystop.param(2, "how many neighbours to pull from")

    def capabilities(self):
        return dystop.Capabilities(mode="async")

    def plan(self, memory, view):
        active = np.flatnonzero(view.alive)
        dst, src = view.k_nearest(self.neighbours, by="distance_m")
        rows = dystop.size_weights(active, dst, src, view.fleet.data_size)
        return dystop.Plan(active, dystop.links(dst, src), (rows,)), memory


def test_every_public_name_exists():
    assert set(dystop.__all__) == set(dir(dystop))
    assert all(getattr(dystop, name) is not None for name in dystop.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = dystop.nothing


def test_neither_help_nor_a_mechanism_waits_for_torch():
    code = (
        "import sys, dystop, dystop.cli.app; dystop.Mechanism, dystop.size_weights, dystop.param;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_does_not_wait_for_numpy():
    code = "import sys, dystop.cli.app; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mechanism_needs_no_deeper_import():
    check_mechanism(NearestPull())
    run = small(NearestPull(neighbours=2), world={"range_m": 142.0}).run()
    assert run.name == "nearest-pull-synthetic-s0"
    assert [record.links for record in run.records] == [8, 8]


def test_an_object_and_its_name_give_the_same_run():
    by_object = lines(small(dystop.DySTop(V=10.0)))
    assert by_object == lines(small("dystop"))
    assert by_object == lines(small(dystop.DySTop(V=10)))


def test_iterating_again_runs_again():
    simulation = small()
    assert lines(simulation) == lines(simulation)
    assert len(simulation.records) == 2
    assert "range" in simulation.physics["area"]


def test_records_are_handed_to_a_callback():
    seen = []
    run = small(on_round=seen.append).run()
    assert seen == list(run.records)
    assert len(seen) == 2


@pytest.mark.parametrize("section", [{"range_m": 60, "area_m": (80, 80)}, "object"])
def test_sections_of_the_configuration_are_keywords(section):
    if section == "object":
        section = replace(small().experiment.world, range_m=60.0, area_m=(80.0, 80.0))
    simulation = small(world=section, training={"batch": np.int64(16)})
    assert simulation.experiment.world.range_m == 60.0
    assert simulation.experiment.world.area_m == (80.0, 80.0)
    assert simulation.experiment.training.batch == 16
    words = small(overrides=["world.range_m=60", "world.area_m=[80, 80]", "training.batch=16"])
    assert simulation.experiment == words.experiment


def test_a_small_fleet_stands_closer_unless_the_yard_is_given():
    assert small(workers=4).experiment.world.area_m == (20.0, 20.0)
    assert small(workers=4, world={"reach": "overlay"}).experiment.world.area_m == (20.0, 20.0)
    assert small(overrides=["fleet.workers=9"]).experiment.world.area_m == pytest.approx(
        (30.0,) * 2
    )
    for given in ({"range_m": 40.0}, {"area_m": (100, 100)}, WorldParams()):
        assert small(workers=4, world=given).experiment.world.area_m == (100.0, 100.0)


def test_overrides_win_over_arguments_and_arguments_over_sections():
    simulation = small(rounds=3, stop={"rounds": 9, "seconds": 50.0}, overrides=["stop.seconds=70"])
    assert (simulation.experiment.stop.rounds, simulation.experiment.stop.seconds) == (3, 70.0)
    unnamed = dystop.simulate(dataset="synthetic", model="softmax", fleet={"workers": 3})
    assert (unnamed.experiment.fleet.workers, unnamed.experiment.stop.rounds) == (3, 60)
    assert small(rounds=None, stop={"rounds": 9}).experiment.stop.rounds == 9


def test_none_takes_a_value_back():
    assert small(training={"chunk": 8}).experiment.training.chunk == 8
    assert small(training={"chunk": None}).experiment.training.chunk is None


@pytest.mark.parametrize("form", ["dict", "tuple", "Dataset", "npz"])
def test_data_may_be_arrays(form, tmp_path):
    given = arrays()
    np.savez(tmp_path / "mine.npz", **given)
    dataset = {
        "dict": given,
        "tuple": tuple(given.values()),
        "npz": tmp_path / "mine.npz",
        "Dataset": None,
    }[form]
    if form == "Dataset":
        dataset = dystop.Dataset(
            "mine",
            given["x_train"][:, :, None, None],
            given["y_train"],
            given["x_test"][:, :, None, None],
            given["y_test"],
            classes=3,
            class_names=("a", "b", "c"),
            source="test",
            mean=(0.0,) * 5,
            std=(1.0,) * 5,
        )
    by_path = lines(small(dataset=str(tmp_path / "mine.npz")))
    assert lines(small(dataset=dataset)) == by_path


class Net(nn.Module):
    """A linear model with a fixed start."""

    def __init__(self, channels, classes, size=(1, 1)):
        super().__init__()
        self.linear = nn.Linear(channels * size[0] * size[1], classes)

    def forward(self, x):
        return self.linear(x.flatten(1))


def test_a_model_may_be_a_module_that_is_copied():
    prototype = Net(5, 3)
    before = prototype.linear.weight.detach().clone()
    simulation = small(dataset=arrays(), model=prototype)
    assert lines(simulation) == lines(simulation)
    assert torch.equal(prototype.linear.weight, before)
    trained = simulation.model()
    assert isinstance(trained.module, Net)
    assert not torch.equal(trained.module.linear.weight, before)
    assert trained(arrays()["x_test"][:, :, None, None]).shape == (12, 3)
    assert simulation.model(worker=2).card.model == f"{__name__}:Net"


def test_a_model_may_be_a_factory_whose_weights_follow_the_seed():
    def factory(channels, classes):
        return Net(channels, classes)

    first, again, other = (small(dataset=arrays(), model=factory, seed=s) for s in (1, 1, 2))
    assert lines(first) == lines(again) != lines(other)
    assert isinstance(first.model().module, Net)


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"mechanism": dystop.DySTop(V=-1)}, ["mechanism.V = -1", ">= 0"]),
        ({"mechanism": dystop.DySTop(V="x")}, ["mechanism.V"]),
        ({"mechanism": dystop.DySTop}, ["mechanism", "DySTop(V=20)"]),
        ({"mechanism": "dystp"}, ["mechanism = 'dystp'", "did you mean 'dystop'"]),
        ({"mechanism": dystop.DySTop(), "overrides": ["mechanism.V=5"]}, ["mechanism.V=5"]),
        ({"overrides": "model.name=softmax"}, ["overrides", "key=value"]),
        ({"overrides": [3]}, ["overrides", "key=value"]),
        ({"overrides": ["stop.rounds"]}, ["overrides", "'stop.rounds'"]),
        ({"overrides": ["world.range_m=-3"]}, ["overrides", "world.range_m = -3"]),
        ({"workers": 0}, ["workers = 0", ">= 1"]),
        ({"workers": 2.5}, ["workers = 2.5", "integer"]),
        ({"rounds": True}, ["rounds = True", "integer"]),
        ({"seed": -1}, ["seed = -1", ">= 0"]),
        ({"dataset": "fmnist-mni"}, ["dataset = 'fmnist-mni'", "did you mean 'fmnist-mini'"]),
        ({"dataset": np.zeros((500, 4))}, ["dataset", "ndarray of shape (500, 4)", "x_train"]),
        ({"dataset": (np.zeros(3), np.zeros(3))}, ["dataset", "x_train, y_train"]),
        ({"model": "cn"}, ["model = 'cn'", "did you mean 'cnn'"]),
        ({"model": 3}, ["model = 3", "torch module"]),
        ({"model": nn.ReLU()}, ["ReLU", "no trainable parameter"]),
        ({"model": nn.Linear(3, 2)}, ["Linear", "fails on a batch"]),
        ({"world": 3}, ["world = 3", "dict"]),
        ({"world": {"range": 3}}, ["world.range", "did you mean"]),
        ({"world": {"range_m": -3}}, ["world.range_m = -3"]),
        ({"world": {"range_m": np.zeros(900)}}, ["world.range_m", "shape (900,)"]),
        ({"on_round": 3}, ["on_round = 3", "function"]),
    ],
)
def test_a_bad_argument_is_named(more, facts):
    with pytest.raises(dystop.ConfigError) as caught:
        small(**more)
    message = str(caught.value)
    assert all(fact in message for fact in facts), message
    assert "command line" not in message
    assert len(message) < 500


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match=r"'wrld'.*'world'"):
        small(wrld={"range_m": 3})


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"y_test": None}, ["dataset", "y_test"]),
        ({"x_train": np.full((40, 5), np.nan)}, ["dataset", "x_train", "NaN"]),
        ({"y_train": np.arange(39)}, ["dataset", "40", "39"]),
        ({"y_train": np.zeros(40)}, ["dataset", "y_train", "float64"]),
        ({"labels": np.zeros(40)}, ["dataset", "'labels'"]),
    ],
)
def test_bad_arrays_are_named(change, facts):
    given = {key: value for key, value in {**arrays(), **change}.items() if value is not None}
    with pytest.raises(dystop.DataError) as caught:
        small(dataset=given)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_model_is_there_after_the_last_round():
    simulation = small()
    with pytest.raises(ValueError, match="run"):
        simulation.model()
    simulation.run()
    assert simulation.model().card.model == "softmax"
    with pytest.raises(IndexError, match="worker = 4"):
        simulation.model(worker=4)


def test_arrays_of_a_run_have_one_entry_per_round():
    run = small(rounds=5, evaluate={"every_rounds": 2}).run()
    columns = run.to_arrays()
    assert columns["round"].tolist() == [1, 2, 3, 4, 5]
    assert columns["round"].dtype.kind == "i"
    assert {len(column) for column in columns.values()} == {5}
    tested = [r.accuracy is not None for r in run.records]
    assert 0 < sum(tested) < 5
    np.testing.assert_array_equal(~np.isnan(columns["accuracy"]), tested)
    assert run.accuracy == columns["accuracy"][tested][-1]
    assert columns["notes.phase"].tolist() == [r.notes["phase"] for r in run.records]
    assert "link_pairs" not in columns
    assert math.isnan(dystop.Run("empty", {"seed": 0}, ()).accuracy)
    assert dystop.Run("empty", {"seed": 0}, ()).to_arrays()["round"].tolist() == []


def test_a_run_folder_is_read_back(tmp_path):
    words = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=2"]
    options = ["--out", str(tmp_path), "--name", "one", "--no-report", "-q"]
    assert CliRunner().invoke(app, ["run", *words, *options]).exit_code == 0
    run = dystop.load_run(tmp_path / "one")
    simulated = small().run()
    assert run.name == "one"
    assert [r.to_json() for r in run.records] == [r.to_json() for r in simulated.records]
    assert run.config["fleet"] == simulated.config["fleet"] == {"workers": 4}
    assert run.seed == 0
    assert dystop.load_model(tmp_path / "one").card.model == "softmax"
    with pytest.raises(dystop.RunFolderError, match="two"):
        dystop.load_run(str(tmp_path / "two"))


def test_mechanisms_are_compared_on_the_same_seeds():
    shared = {**SMALL, "rounds": 3}
    comparison = dystop.compare(["d-psgd", dystop.FedAvg()], seeds=[3, 4], **shared)
    assert {name: [r.seed for r in runs] for name, runs in comparison.runs.items()} == {
        "d-psgd": [3, 4],
        "fedavg": [3, 4],
    }
    alone = small("d-psgd", rounds=3, seed=4).run()
    assert comparison.runs["d-psgd"][1].records == alone.records
    columns = comparison.to_arrays()
    assert columns["mechanism"].tolist() == ["d-psgd"] * 6 + ["fedavg"] * 6
    assert columns["seed"].tolist() == [3] * 3 + [4] * 3 + [3] * 3 + [4] * 3
    rows = comparison.summary()
    assert [row["accuracy"] for row in rows] == sorted((r["accuracy"] for r in rows), reverse=True)
    first = rows[0]["mechanism"]
    mean = np.mean([run.accuracy for run in comparison.runs[first]])
    assert rows[0]["accuracy"] == pytest.approx(mean)
    table = str(comparison).splitlines()
    assert table[0].split()[:3] == ["mechanism", "seeds", "accuracy"]
    shown = [line.split()[0] for line in table[1:] if not line.startswith("note: ")]
    assert shown == [row["mechanism"] for row in rows]


def test_a_printed_comparison_warns_where_clocks_differ():
    shared = {**SMALL, "rounds": 8, "evaluate": {"every_rounds": 1}}
    comparison = dystop.compare(["d-psgd", "ad-psgd"], **shared)
    ends = {name: run.records[-1].clock_s for name, run in comparison}
    assert ends["d-psgd"] > 1.2 * ends["ad-psgd"]
    (note,) = [line for line in str(comparison).splitlines() if line.startswith("note: ")]
    for fact in (seconds(ends["d-psgd"]), "d-psgd", "ad-psgd", 'stop={"seconds": S}'):
        assert fact in note
    assert "does not compare" in comparison._repr_html_()
    rows = comparison.summary()
    at_s = comparison.common_time_s
    assert f"accuracy at {seconds(at_s)}" in str(comparison).splitlines()[0]
    scores = {name: run.evaluations.score_at(at_s) for name, run in comparison}
    assert {row["mechanism"]: row["accuracy_common"] for row in rows} == scores
    assert [row["accuracy_common"] for row in rows] == sorted(scores.values(), reverse=True)


def test_seconds_alone_end_the_runs_of_a_comparison():
    shared = {key: value for key, value in SMALL.items() if key != "rounds"}
    comparison = dystop.compare(["d-psgd", "ad-psgd"], **shared, stop={"seconds": 6.0})
    for _, run in comparison:
        assert run.records[-1].clock_s >= 6.0
        assert run.records[-2].clock_s < 6.0
    assert len(comparison.runs["ad-psgd"][0].records) > 60
    assert comparison.warning == ""


def test_planning_only_has_no_accuracy_to_warn_of():
    shared = {**SMALL, "rounds": 8, "engine": {"train": False}}
    assert dystop.compare(["d-psgd", "ad-psgd"], **shared).warning == ""


def test_notes_of_one_mechanism_are_missing_in_the_others():
    columns = dystop.compare(["dystop", "d-psgd"], **SMALL).to_arrays()
    assert np.isnan(columns["notes.phase"]).tolist() == [False, False, True, True]


def test_runs_of_one_mechanism_are_told_apart_by_label():
    variants = [dystop.DySTop(V=1.0), dystop.DySTop(V=50.0, neighbours=1)]
    assert list(dystop.compare(variants, **SMALL).runs) == [
        "dystop(V=1.0)",
        "dystop(V=50.0, neighbours=1)",
    ]
    assert list(dystop.compare({"a": variants[0], "b": "dystop"}, **SMALL).runs) == ["a", "b"]


@pytest.mark.parametrize(
    ("mechanisms", "seeds", "facts"),
    [
        ("dystop", [0], ["mechanisms = 'dystop'", "list"]),
        ([], [0], ["mechanisms = []"]),
        (["dystop", "dystop"], [0], ["'dystop'", "label"]),
        (["dystop"], 3, ["seeds = 3", "list"]),
        (["dystop"], [], ["seeds = []"]),
        (["dystop"], [0.5], ["seed = 0.5"]),
        (["nope"], [0], ["mechanism = 'nope'"]),
    ],
)
def test_bad_comparisons_are_named(mechanisms, seeds, facts):
    with pytest.raises(dystop.ConfigError) as caught:
        dystop.compare(mechanisms, seeds=seeds, **SMALL)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


class FakePandas:
    DataFrame = dict


@pytest.mark.parametrize("what", ["run", "comparison"])
def test_data_frames_need_pandas(what, monkeypatch):
    value = small().run() if what == "run" else dystop.compare(["d-psgd"], **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        value.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", FakePandas)
    assert value.to_pandas().keys() == value.to_arrays().keys()


@pytest.mark.parametrize("mechanism", ["dystop", "matcha", "asydfl", "sa-adfl"])
def test_a_stand_in_has_the_plans_the_clock_and_the_traffic_of_the_large_model(mechanism):
    def seen(model):
        run = small(mechanism, model=model)
        return [(r.clock_s, r.wire_bytes, r.get("link_pairs"), r.get("active_ids")) for r in run]

    width = (64 + 1) * 200 + (200 + 1) * 200 + (200 + 1) * 10
    large = seen("mlp")
    assert seen({"name": "softmax", "wire_bytes": 4 * width}) == large
    assert seen("softmax") != large


def test_a_comparison_shows_what_each_mechanism_computes():
    shared = {"workers": 4, "dataset": "synthetic", "model": "softmax", "rounds": 2}
    comparison = dystop.compare(["d-psgd", "sa-adfl"], **shared)
    spent = {row["mechanism"]: row["epochs"] for row in comparison.summary()}
    last = {name: run.records[-1].epochs_total for name, run in comparison}
    assert spent == last
    assert spent["d-psgd"] > spent["sa-adfl"]
    assert str(comparison).splitlines()[0].split()[-1] == "epochs"
