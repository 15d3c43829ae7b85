"""Mechanisms outside the package that carry vectors: push-sum, K-GT and NoLoCo (examples/)."""

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dystop.carried import Carried, places_of
from dystop.config import read_experiment
from dystop.conformance import check_mechanism
from dystop.control.stopping import Evaluate, Stop
from dystop.errors import ConfigError, TransportError
from dystop.mechanisms import DPSGD
from dystop.runs.building import build
from dystop.simulator import run_rounds
from dystop.simulator.checkpoint import load_newest, save
from dystop.simulator.round import begin
from dystop.training.carried_vectors import CarriedVectors
from dystop.training.flat import Layout, Slot
from dystop.training.problem import Job, Trained
from support.engine_fixtures import STABLE_WORLD, AddingTrainer, components_for, line

FOLDER = Path(__file__).parents[2] / "examples" / "mechanisms"


def example(module, name):
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, FOLDER / f"{module}.py")
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return getattr(sys.modules[module], name)


PushSum, KGT = example("push_sum", "PushSum"), example("kgt", "KGT")
NoLoCo = example("noloco", "NoLoCo")


class OneWeight(torch.nn.Module):
    def __init__(self, weight=0.0):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([weight]))


@dataclass
class Quadratic(AddingTrainer):
    """Each worker descends on (x - b)^2 / 2 with its own b, for a number of steps."""

    mechanism: object = None
    optima: tuple = ()
    rate: float = 0.1
    taken: int = 1

    def __post_init__(self):
        slot = Slot("x", (1,), torch.float32)
        self.vectors = CarriedVectors(Layout((slot,), (), ()), self.mechanism)

    @property
    def places(self):
        return self.vectors.places

    def initial(self):
        return self.vectors.initial(OneWeight())

    def train(self, models, counters, workers, versions, steps, rates=None):
        rates = np.ones(len(workers)) if rates is None else rates
        job = Job(models, counters, workers, versions, steps, rates)
        job, before = self.vectors.split(job)
        x, b = job.models.clone(), torch.tensor([self.optima[k] for k in workers])[:, None]
        rate = torch.from_numpy(self.rate * rates).float()[:, None]
        for _ in range(self.taken):
            x = x - rate * (x - b + (0.0 if job.correction is None else job.correction))
        done = Trained(x, job.counters, np.zeros(len(workers)), len(workers))
        taken = np.full(len(workers), self.taken)
        return self.vectors.joined(job, before, done, taken, self.rate * rates)


def path_of_three(mechanism, start, optima=(0.0, 3.0, 12.0), rounds=1, **trainer):
    """Components and a state: worker 1 is in reach of 0 and 2, and all have trained once."""
    params = replace(STABLE_WORLD, range_m=15.0)
    trainer = Quadratic(mechanism=mechanism, optima=optima, **trainer)
    components = components_for(
        mechanism, 3, trainer=trainer, params=params, position=line(3), stop=Stop(rounds=rounds),
        evaluate=Evaluate(every_rounds=1000),
    )  # fmt: skip
    state = begin(components)
    models, everyone = state.models, np.arange(3)
    vector, counters = trainer.initial()
    models.latest[:], models.counters[:] = vector, counters
    views = trainer.places.values(models.latest, models.counters)
    for name, value in start.items():
        views[name][:, 0] = torch.tensor(value)
    done = trainer.train(
        models.latest.clone(), models.counters.clone(), everyone, everyone * 0, everyone * 0 + 1
    )
    models.latest[:], models.counters[:] = done.models, done.counters
    return components, state


def end_of(components, state):
    *_, (_, state) = run_rounds(components, state)
    values = components.trainer.places.values(state.models.latest, state.models.counters)
    return {name: value[:, 0].double().numpy() for name, value in values.items()}


KGT_START = {"model": (3.0, 6.0, 9.0), "correction": (-2.0, -2.0, 4.0)}


def test_kgt_by_hand():
    """Two local steps of 0.1 (the worked example): c stays, then moves."""
    one = end_of(*path_of_three(KGT(), KGT_START, taken=2))
    assert one["correction"] == pytest.approx([-2.0, -2.0, 4.0], abs=1e-5)
    two = end_of(*path_of_three(KGT(), KGT_START, rounds=2, taken=2))
    assert two["correction"] == pytest.approx([-2.3167, -2.0, 4.3167], abs=1e-4)


def test_kgt_has_no_bias_and_its_corrections_sum_to_zero():
    end = end_of(*path_of_three(KGT(), KGT_START, rounds=300, taken=2))
    assert end["model"] == pytest.approx([5.0, 5.0, 5.0], abs=1e-3)
    assert end["correction"].sum() == pytest.approx(0.0, abs=1e-4)


def test_kgt_with_one_step_tracks_the_gradient():
    """Its limit is that of gradient tracking; D-PSGD ends at (3.71, 4.82, 6.48)."""
    end = end_of(*path_of_three(KGT(), {"model": (3.0, 6.0, 9.0)}, rounds=400))
    assert end["model"] == pytest.approx([5.0, 5.0, 5.0], abs=1e-3)
    biased = end_of(*path_of_three(DPSGD(topology="complete"), {}, rounds=400))
    assert np.ptp(biased["model"]) > 1.0


def test_noloco_by_hand():
    """Pairs (01)(23), then inner progress and pairs (02)(13), as in the worked example."""
    mechanism = NoLoCo(rate=0.7, momentum=0.5)
    own = {"start": np.array([0.0, 4.0, 8.0, 12.0]), "velocity": np.zeros(4)}
    after = mechanism.after_mixing(own, {"model": np.array([2.0, 2.0, 10.0, 10.0])}, 1.0)
    assert after["model"] == pytest.approx([1.4, 2.6, 9.4, 10.6])
    assert after["velocity"] == pytest.approx([1.4, -1.4, 1.4, -1.4])
    trained = after["model"] + np.array([0.5, 0.5, -0.5, -0.5])
    mean = (trained + trained[[2, 3, 0, 1]]) / 2
    again = mechanism.after_mixing(after, {"model": mean}, 1.0)
    assert again["model"] == pytest.approx([4.9, 4.7, 7.3, 7.1])


def test_noloco_without_momentum_averages_pairs():
    start = {"model": (3.0, 6.0, 9.0), "start": (3.0, 6.0, 9.0)}
    mechanism = NoLoCo(rate=1.0, momentum=0.0)
    end = end_of(*path_of_three(mechanism, start, rate=0.0))["model"]
    assert sorted(end.tolist()) in ([4.5, 4.5, 9.0], [3.0, 7.5, 7.5])


def test_push_sum_keeps_sums_and_removes_the_bias():
    start = {"model": (3.0, 6.0, 9.0)}
    worth = []
    for rounds in (1, 2, 60):
        end = end_of(*path_of_three(PushSum(receivers=1), start, rounds=rounds, rate=0.0))
        assert end["weight"].sum() == pytest.approx(3.0, abs=1e-5)
        assert (end["weight"] * end["model"]).sum() == pytest.approx(18.0, abs=1e-4)
        worth.append(np.ptp(end["weight"]))
    assert end["model"] == pytest.approx([6.0, 6.0, 6.0], abs=1e-3)
    assert worth[0] > 0.1  # rows alone would have moved the mean


@pytest.mark.parametrize("mechanism", [PushSum(), KGT(), NoLoCo()], ids=lambda m: m.name)
def test_the_conformance_kit(mechanism):
    check_mechanism(mechanism)


WORDS = (
    "mechanism.folder=" + str(FOLDER), "fleet.workers=5", "data.name=synthetic", "stop.rounds=6",
    "data.options.train=150", "data.options.test=30", "model.name=mlp", "world.range_m=200",
)  # fmt: skip
NAMES = ("push_sum:PushSum", "kgt:KGT", "noloco:NoLoCo")


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_carries_on_exactly(name, tmp_path):
    experiment = read_experiment(None, [*WORDS, f"mechanism.name={name}"])
    components = build(experiment).components
    lines = []
    for record, state in run_rounds(components, begin(components)):
        lines.append(record.to_json())
        if record.round == 3:
            save(tmp_path, state)
    half = load_newest(tmp_path, torch.device("cpu")).state
    rest = list(run_rounds(components, half))
    assert [record.to_json() for record, _ in rest] == lines[3:]
    again = rest[-1][1]
    assert torch.equal(again.models.latest, state.models.latest)
    assert torch.equal(again.models.counters, state.models.counters)


def test_bytes_on_the_wire_count_what_travels():
    sizes = {}
    for name in (*NAMES, "d-psgd"):
        fleet = build(read_experiment(None, [*WORDS, f"mechanism.name={name}"])).components.fleet
        sizes[name] = fleet.model_bytes
    plain = sizes["d-psgd"]
    assert sizes == {NAMES[0]: plain + 4, NAMES[1]: 2 * plain, NAMES[2]: plain, "d-psgd": plain}
    larger = read_experiment(None, [*WORDS, f"mechanism.name={NAMES[1]}", "model.wire_bytes=1000"])
    assert build(larger).components.fleet.model_bytes == 2000


def test_corrections_take_the_sequential_path_or_are_refused():
    words = [*WORDS, "mechanism.name=kgt:KGT"]
    assert build(read_experiment(None, words)).fleet["training_path"] == "sequential"
    with pytest.raises(ConfigError, match=r"training\.path = 'fused'.*sequential"):
        build(read_experiment(None, [*words, "training.path=fused"]))


def test_a_lost_share_of_a_weight_is_refused_before_the_run():
    words = [*WORDS, "mechanism.name=push_sum:PushSum"]
    for option in (
        "world.outages.loss=0.1", "link.compression=int8", "aggregation.rule=median",
        "staleness.rule=constant", "world.budget.binds=everybody",
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=r".*push-sum carries 'weight'.*leave \S+ out"):
            build(read_experiment(None, [*words, option]))


def test_a_share_that_is_lost_ends_the_run():
    components, state = path_of_three(PushSum(receivers=1), {})
    world = components.world

    class Lossy:
        def __getattr__(self, name):
            return getattr(world, name)

        def realise(self, *args):
            found = world.realise(*args)
            return replace(found, lost=np.arange(len(found.lost)) == 0)

    with pytest.raises(TransportError, match=r"round 1: the transfer from \d to \d was lost"):
        end_of(replace(components, world=Lossy()), state)


def test_places_do_not_overlap():
    carries = (
        Carried("a"),
        Carried("b", "own", width=1),
        Carried("c", "home"),
        Carried("d", "home", 3),
    )
    places = places_of(carries, parameters=5, width=7, counters=2)
    vector, counters = np.zeros((2, 13), np.float32), np.zeros((2, 7), np.int64)
    places.write(vector, counters, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    assert vector[0].tolist() == [0] * 7 + [1] * 5 + [2]
    assert counters[:, :2].tolist() == [[0, 0]] * 2
    values = places.values(vector, counters)
    assert {k: v.shape for k, v in values.items()} == {
        "model": (2, 5), "a": (2, 5), "b": (2, 1), "c": (2, 5), "d": (2, 3),
    }  # fmt: skip
    assert (values["c"] == 3).all()
    assert (values["d"] == 4).all()


def test_an_attacker_sends_carried_vectors_with_rows_of_their_own():
    words = [*WORDS, "mechanism.name=push_sum:PushSum", "adversary.kind=flip", "stop.rounds=2"]
    components = build(read_experiment(None, words)).components
    *_, (_, state) = run_rounds(components, begin(components))
    values = components.trainer.places.values(state.models.latest, state.models.counters)
    assert (values["weight"] < 1).any()


@dataclass(frozen=True)
class Clocked(DPSGD):
    """Adds up the seconds that its worker was told."""

    name = "clocked"

    def capabilities(self):
        return replace(super().capabilities(), carries=(Carried("seconds", "home", width=1),))

    def after_mixing(self, own, mixed, dt):
        return {"seconds": own["seconds"] + dt}


def test_a_worker_is_told_the_seconds_since_its_last_round():
    """They add up to when its last round opened."""
    components, state = path_of_three(Clocked(topology="complete"), {}, rounds=5)
    records = [(record, state) for record, state in run_rounds(components, state)]
    opened_s, state = records[-2][0].clock_s, records[-1][1]
    told = components.trainer.places.values(state.models.latest, state.models.counters)["seconds"]
    assert told[:, 0].tolist() == pytest.approx([opened_s] * 3)
    assert state.control.active_s.tolist() == [opened_s] * 3
    assert opened_s > 0.0
