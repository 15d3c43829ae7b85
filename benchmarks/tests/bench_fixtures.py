"""What the tests of `dystop bench` share."""

import torch
from typer.testing import CliRunner

from dystop.cli import app
from dystop_benchmarks.result import Line, spread
from dystop_benchmarks.settings import Scale

CPU = torch.device("cpu")
TINY = Scale(
    images=8,
    test_images=10,
    rounds=2,
    run_test_images=10,
    fleets=(30, 60),
    at_least_s=0.001,
    plain_workers=1,
)


def call(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def a_line(**more):
    usual = {"what": "trainer", "name": "cnn", "unit": "images/s", "value": spread([10.0, 30.0])}
    beside = {"reference": "a loop", "reference_value": spread([5.0, 10.0]), "better": "higher"}
    return Line(**{**usual, **beside, **more})
