"""Parameters declared as dataclass fields."""

from dataclasses import dataclass

import pytest

from dystop.params import param, params_of, section


@dataclass(frozen=True)
class Inner:
    size: int = param(3, "how large")


@dataclass(frozen=True)
class Outer:
    speed: float = param(1.5, "how fast")
    inner: Inner = section(Inner, "the inside")


def test_parameters_are_described_in_order():
    speed, inner = params_of(Outer)
    assert (speed.name, speed.type, speed.default, speed.meaning) == (
        "speed",
        "float",
        1.5,
        "how fast",
    )
    assert (inner.name, inner.type, inner.meaning) == ("inner", "Inner", "the inside")
    assert Outer().inner == Inner(3)


def test_mutable_defaults_are_refused():
    for bad in ([], {}, set()):
        with pytest.raises(TypeError, match="immutable"):
            param(bad, "no")
