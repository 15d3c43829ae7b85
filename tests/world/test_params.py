"""Parameters of the world: bounds, defaults and error messages."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dystop.errors import ConfigError
from dystop.params import params_of
from dystop.world import Budget, Channel, Churn, Compute, Mobility, Outages, World, WorldParams

BAD = [
    (WorldParams, "range_m", 0.0, r"world\.range_m = 0\.0: must be >= 0\.001 and <= 1e\+10"),
    (WorldParams, "range_m", float("nan"), r"world\.range_m = nan: expected a finite number"),
    (WorldParams, "area_m", (100.0, 0.0), r"world\.area_m = .*must be >= 0\.001"),
    (WorldParams, "area_m", (100.0,), r"world\.area_m = .*2 numbers"),
    (WorldParams, "reach", "overlya", r"world\.reach = 'overlya': .*did you mean 'overlay'"),
    (WorldParams, "channel", None, r"world\.channel: expected a Channel"),
    (Channel, "power_dbm", (20, 10), r"world\.channel\.power_dbm = \(20, 10\): .*min <= max"),
    (Channel, "bandwidth_hz", -1.0, r"world\.channel\.bandwidth_hz = -1\.0: must be >= 1"),
    (Channel, "bandwidth_hz", "fast", r"world\.channel\.bandwidth_hz = 'fast': .*number"),
    (Channel, "noise_w", 0.0, r"world\.channel\.noise_w"),
    (Channel, "coherence_blocks", 0, r"coherence_blocks = 0: must be >= 1 and <= 1024"),
    (Channel, "coherence_blocks", 2.5, r"coherence_blocks = 2\.5: expected an integer"),
    (Channel, "fading", 1, r"world\.channel\.fading = 1: expected true or false"),
    (Compute, "batch_s", "quick", r"batch_s = 'quick': expected a finite number, or .*'measure'"),
    (Compute, "batch_s", 0.0, r"batch_s = 0\.0: must be >= 1e-12 and <= 1e\+09, or .*'measure'"),
    (Compute, "slowest", 0.5, r"world\.compute\.slowest = 0\.5: must be >= 1 and"),
    (Compute, "fastest", 1.5, r"world\.compute\.fastest = 1\.5: must be >= 1e-06 and <= 1"),
    (
        Budget,
        "models",
        -1.0,
        r"world\.budget\.models = -1\.0: must be >= 0 and .*, or expected None",
    ),
    (Mobility, "speed_mps", (0.0, 1.0), r"world\.mobility\.speed_mps"),
    (Mobility, "pause_s", (5.0, 1.0), r"world\.mobility\.pause_s = \(5\.0, 1\.0\)"),
    (Churn, "mean_up_s", 0.0, r"world\.churn\.mean_up_s"),
    (Outages, "drop", 1.5, r"world\.outages\.drop = 1\.5: must be >= 0 and <= 1"),
    (Outages, "loss", -0.1, r"world\.outages\.loss"),
]


@pytest.mark.parametrize(("kind", "name", "value", "message"), BAD)
def test_bad_values_are_refused_by_name(kind, name, value, message):
    with pytest.raises(ConfigError, match=message):
        kind(**{name: value})


def test_good_values_at_the_edge_are_accepted():
    Outages(drop=1, loss=0)
    Compute(batch_s="measure", spread=0)
    Budget(models=None)
    Channel(power_dbm=(15.0, 15.0), coherence_blocks=1)


def test_defaults_are_the_papers():
    params = WorldParams()
    assert params.area_m == (100.0, 100.0)
    assert params.range_m == 40.0
    channel = params.channel
    assert (channel.bandwidth_hz, channel.noise_w, channel.reference_gain_db) == (1e6, 1e-13, -43)
    assert (channel.path_loss_exponent, channel.power_dbm) == (4, (10, 20))
    assert params.compute.batch_s == 0.02


@pytest.mark.parametrize("kind", [WorldParams, Channel, Compute, Budget, Mobility, Churn, Outages])
def test_every_parameter_has_a_description(kind):
    assert all(parameter.meaning for parameter in params_of(kind))


def test_a_configuration_reader_can_build_them():
    reader = TypeAdapter(WorldParams)
    got = reader.validate_python(
        {"range_m": 30, "channel": {"power_dbm": [5, 6]}, "compute": {"batch_s": "measure"}}
    )
    assert got == WorldParams(
        range_m=30.0, channel=Channel(power_dbm=(5.0, 6.0)), compute=Compute(batch_s="measure")
    )
    with pytest.raises(ValidationError, match=r"world\.channel\.power_dbm = .*min <= max"):
        reader.validate_python({"channel": {"power_dbm": [6, 5]}})


def test_measured_compute_must_be_filled_in_first():
    with pytest.raises(ConfigError, match=r"world\.compute\.batch_s = 'measure'.*seconds"):
        World(WorldParams(compute=Compute(batch_s="measure")), 4, 1000, 0)


@pytest.mark.parametrize(("workers", "model_bytes"), [(0, 10), (4, 0)])
def test_an_empty_world_is_refused(workers, model_bytes):
    facts = rf"{workers} workers, {model_bytes} .*>= 1"
    with pytest.raises(ConfigError, match=facts):
        World(WorldParams(), workers, model_bytes, 0)


def test_a_large_overlay_is_refused():
    with pytest.raises(ConfigError, match=r"world\.reach = 'overlay'.*3,001 .*3,000 .*'strict'"):
        World(WorldParams(reach="overlay"), 3001, 1000, 0)
