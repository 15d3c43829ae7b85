"""Extreme settings of the world: what is accepted gives a finite clock, and no bare error."""

import math
import warnings
from dataclasses import replace
from typing import get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Le
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.mechanisms import DPSGD, DySTop, FedAvg
from dystop.runs.building import build
from dystop.world import Channel, Compute, WorldParams
from dystop.world.describe import describe
from dystop.world.geometry import expected_links
from support.engine_fixtures import components_for, run_to_end

HUGE = [1e-320, 1e-160, 1e-40, 1e40, 1e160, 1e300, 1.7e308]


def values_of(kind, name):
    """Return the bounds of a float key, its default, and numbers far outside."""
    hint = get_type_hints(kind, include_extras=True)[name]
    pair = get_origin(hint) is tuple
    number = get_args(hint)[0] if pair else hint
    bounds = [b for part in (number, *get_args(number)) for b in getattr(part, "__metadata__", ())]
    low = next(b.ge for b in bounds if isinstance(b, Ge))
    high = next(b.le for b in bounds if isinstance(b, Le))
    default = getattr(kind(), name)
    inside = [(v, v) for v in (low, high)] if pair else [low, high]
    return [default, *inside], [(v, v) for v in HUGE] if pair else HUGE


KEYS = {
    Channel: (
        "bandwidth_hz", "noise_w", "reference_gain_db", "path_loss_exponent", "power_dbm",
        "power_fluctuation", "server_power_dbm", "min_distance_m",
    ),
    Compute: ("batch_s", "spread", "slowest", "fastest"),
    WorldParams: ("area_m", "range_m"),
}  # fmt: skip


def clocks(params, mechanism):
    """Return the clock after each of three rounds, with every warning of NumPy as an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changes = {"params": params, "position": None, "stop": Stop(rounds=3)}
        components = components_for(mechanism, 4, **changes)
        assert all(describe(components.world).values())
        expected_links(params, 4)
        records, _ = run_to_end(components)
    return [record.clock_s for record in records]


@st.composite
def worlds(draw):
    """Draw a world whose keys have their default or lie at a bound."""
    parts = {}
    for kind, names in KEYS.items():
        parts[kind] = {name: draw(st.sampled_from(values_of(kind, name)[0])) for name in names}
    fading, noise = draw(st.booleans()), draw(st.sampled_from(["power", "squared"]))
    blocks = draw(st.integers(1, 3))
    channel = Channel(**parts[Channel], fading=fading, noise=noise, coherence_blocks=blocks)
    return WorldParams(**parts[WorldParams], channel=channel, compute=Compute(**parts[Compute]))


@settings(max_examples=60, deadline=None)
@given(worlds(), st.sampled_from([DPSGD(pairs="all"), DySTop(), FedAvg()]))
def test_what_is_accepted_gives_a_finite_clock(params, mechanism):
    found = clocks(params, mechanism)
    assert all(map(math.isfinite, found))
    assert found == sorted(found)


@pytest.mark.parametrize("kind", KEYS)
def test_numbers_far_outside_are_refused_by_name_or_work(kind):
    refusals = []
    for name in KEYS[kind]:
        for value in values_of(kind, name)[1]:
            try:
                part = kind(**{name: value})
            except ConfigError as error:
                refusals.append((f".{name} = ", str(error)))
                continue
            block = {Channel: "channel", Compute: "compute"}.get(kind)
            params = replace(WorldParams(), **{block: part}) if block else part
            assert all(map(math.isfinite, clocks(params, DPSGD(pairs="all"))))
    assert refusals
    assert all(key in message and "must be" in message for key, message in refusals)


@pytest.mark.parametrize("noise", ["power", "squared"])
@pytest.mark.parametrize("watts", [1e300, 1e200, 1e-200])
def test_noise_that_no_radio_has_is_refused(noise, watts):
    with pytest.raises(ConfigError, match=r"world\.channel\.noise_w = .*must be >= .* and <= "):
        Channel(noise_w=watts, noise=noise)


def test_a_world_in_which_no_link_can_work_is_refused_before_the_run():
    words = ["world.channel.noise_w=1", "world.channel.reference_gain_db=-200", "fleet.workers=4"]
    small = ["data.name=synthetic", "model.name=softmax", "world.range_m=200"]
    with pytest.raises(ConfigError, match=r"world\.channel: the fastest link .* s for a model"):
        build(read_experiment(None, [*small, *words]))
