"""The conformance kit on every built-in mechanism and its variants.

A new mechanism is tested here as soon as it is in BUILT_IN; add its variants to VARIANTS.
"""

import pytest

from dystop.conformance import check_description, check_plans, check_runs
from dystop.conformance.runs import ENGINES
from dystop.errors import ConfigError
from dystop.mechanisms import (
    BUILT_IN,
    DPSGD,
    HADFL,
    L2PL,
    SAADFL,
    AsyDFL,
    AsyNG,
    BrainTorrent,
    DCliques,
    DySTop,
    EpidemicLearning,
    FedAsync,
    FedAvg,
    FedHP,
    FedSA,
    GossipFL,
    Matcha,
)
from support.strategies import random_fleet

VARIANTS = {
    **{name: kind() for name, kind in BUILT_IN.items()},
    "dystop first": DySTop(phases="first"),
    "dystop second": DySTop(phases="second"),
    "dystop max": DySTop(estimate="max"),
    "dystop last": DySTop(estimate="last"),
    "dystop ranked": DySTop(estimate="ranked"),
    "dystop V=0": DySTop(V=0.0),
    "dystop bound 0": DySTop(staleness_bound=0.0),
    "dystop alone": DySTop(neighbours=0),
    "d-psgd regular 2": DPSGD(topology="random-regular", degree=2),
    "d-psgd regular 4": DPSGD(topology="random-regular", degree=4),
    "d-psgd complete": DPSGD(topology="complete"),
    "d-psgd size": DPSGD(weights="size"),
    "d-psgd complete size": DPSGD(topology="complete", weights="size"),
    "d-psgd optimal": DPSGD(weights="optimal"),
    "d-psgd regular optimal": DPSGD(topology="random-regular", degree=2, weights="optimal"),
    "d-psgd by id": DPSGD(pairs="all"),
    "d-psgd regular by id": DPSGD(topology="random-regular", degree=4, pairs="all"),
    "braintorrent original": BrainTorrent(variant="original"),
    "epidemic by id": EpidemicLearning(pairs="all"),
    "epidemic local": EpidemicLearning(variant="local"),
    "epidemic pairs": EpidemicLearning(neighbours=1),
    "epidemic dense": EpidemicLearning(neighbours=7),
    "epidemic local 1": EpidemicLearning(variant="local", neighbours=1),
    "gossipfl whole": GossipFL(keep=1.0, window=6),
    "gossipfl one step": GossipFL(window=1, bandwidth_quantile=0.0, steps=1),
    "matcha reach": Matcha(base="reach", budget=0.1, refresh=1),
    "matcha fastest": Matcha(base="fastest", weights="optimal"),
    "matcha full": Matcha(budget=1.0, degree=1),
    "d-cliques pairs": DCliques(clique_size=2, inter="ring", clique_avg=False),
    "d-cliques fractal": DCliques(clique_size=3, inter="fractal", swaps=20),
    "d-cliques smallworld": DCliques(clique_size=2, inter="smallworld", swaps=20),
    "sa-adfl background": SAADFL(background=True),
    "fedavg 0.3": FedAvg(participation=0.3),
    "sa-adfl V=0": SAADFL(V=0.0),
    "sa-adfl mixed": SAADFL(sends="mixed"),
    "sa-adfl latest": SAADFL(mail="latest"),
    "asydfl delta": AsyDFL(payload="delta"),
    "asydfl distance": AsyDFL(quality="distance", fanout=100),
    "asydfl background": AsyDFL(background=True),
    "asydfl silent": AsyDFL(fanout=0),
    "asyng resync": AsyNG(resync=2),
    "asyng full": AsyNG(weights="full", background=True, fanout=100),
    "fedasync hinge": FedAsync(decay="hinge"),
    "fedsa 1": FedSA(arrivals=1, server_share=0.5),
    "fedsa all": FedSA(arrivals=100),
    "fedhp uniform": FedHP(weights="uniform", kappa=0.2, degree=1),
    "fedhp all": FedHP(kappa=1.0, degree=100),
    "hadfl whole ring": HADFL(members=100, beta=1.0),
    "hadfl pair": HADFL(members=2, periods=3, cap=1.0),
    "l2pl labels": L2PL(labels=True, pretrain=0, degree_max=1),
    "l2pl dense": L2PL(degree_mean=100.0, degree_max=100, pretrain=2),
    "l2pl repair only": L2PL(degree_mean=0.0),
}
REFUSES_SMALL = {"d-psgd regular by id": 5}
VIEWS, VIEWS_OF_VARIANTS = 210, 70  # and every shape at every size
PROVENANCES = ("paper", "authors' code", "abstract", "reconstruction", "reference")

every_mechanism = pytest.mark.parametrize("name", VARIANTS)


@every_mechanism
def test_describes_itself(name):
    check_description(VARIANTS[name])


@every_mechanism
def test_plans_for_random_views(name):
    views = VIEWS if name in BUILT_IN else VIEWS_OF_VARIANTS
    check_plans(VARIANTS[name], views, smallest=REFUSES_SMALL.get(name, 1))


@every_mechanism
def test_runs_to_the_end(name):
    engines = ENGINES if name in BUILT_IN else ENGINES[::3]  # two corners for variants
    check_runs(VARIANTS[name], smallest=REFUSES_SMALL.get(name, 1), engines=engines)


@pytest.mark.parametrize("name", REFUSES_SMALL)
def test_impossible_sizes_are_refused_with_advice(name):
    for n in range(1, REFUSES_SMALL[name]):
        with pytest.raises(ConfigError, match=r"mechanism\.\w+ = .*allowed"):
            VARIANTS[name].init(random_fleet(0, n))


@pytest.mark.parametrize("kind", BUILT_IN.values(), ids=list(BUILT_IN))
def test_says_where_it_comes_from(kind):
    assert kind.provenance in PROVENANCES
    assert not kind().our_parts() or kind.provenance == "authors' code"
    assert BUILT_IN[kind.name] is kind
