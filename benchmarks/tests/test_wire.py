"""The benchmark of the wire, with a small model."""

from types import SimpleNamespace

from dystop_benchmarks.suite import BENCHES
from dystop_benchmarks.testbed import wire


def test_a_pull_is_measured_beside_a_socket(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "MODEL_BYTES", 2_000_000)
    monkeypatch.setattr(wire, "_LEAST_REPEATS", 2)
    said = []
    settings = SimpleNamespace(folder=tmp_path, repeat=1)
    (line,) = BENCHES["wire"](settings, said.append)
    assert line.what == "wire"
    assert line.name == "2 MB pulled over loopback, mutual TLS"
    assert said == [line.name]
    assert len(line.ratio.samples) == 2
    assert line.ratio.low > 0
