"""`dystop bench`: samples, ratios, tables, and what they are taken from."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench_fixtures import CPU, a_line
from dystop_benchmarks import settings, stopwatch
from dystop_benchmarks.machine import cpu_model
from dystop_benchmarks.result import markdown, number, row, spread
from dystop_benchmarks.suite import BENCHES, Measured, measure, prepare


def test_a_ratio_is_taken_repeat_by_repeat():
    line = a_line()
    assert line.ratio.samples == (2.0, 3.0)
    tree = json.loads(json.dumps(line.tree()))
    assert tree["ratio"] == {"min": 2.0, "median": 2.5, "max": 3.0, "samples": [2.0, 3.0]}
    assert tree["value"]["median"] == 20.0
    assert tree["better"] == "higher"


def test_a_row_shows_medians_and_the_range_of_the_ratio():
    assert row(a_line())[2:] == ("20.0 images/s", "a loop", "7.50 images/s", "2.50 (2.00 to 3.00)")
    once = a_line(value=spread([1.0]), reference_value=spread([4.0]), unit="1")
    assert row(once)[2:] == ("1.00", "a loop", "4.00", "0.25")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (9.999, "10.00"), (999.6, "1000"), (12345.0, "12,300"), (2.5e7, "25 M")],
)
def test_numbers_have_three_digits_that_matter(value, shown):
    assert number(value) == shown


def test_measures_are_taken_in_turns():
    order = []
    one, two = stopwatch.in_turns(
        [lambda: order.append("a") or 1.0, lambda: order.append("b") or 2], 3
    )
    assert order == list("ababab")
    assert (one.samples, two.samples) == ((1.0,) * 3, (2.0,) * 3)


def test_a_meter_repeats_short_steps_until_they_last():
    calls = []

    def step():
        calls.append(1)
        time.sleep(0.001)
        return 5.0

    rate = stopwatch.Meter(step, CPU, at_least_s=0.02)()
    assert 100 < rate < 5000
    assert len(calls) > 10


def test_images_are_the_same_at_the_same_seed_and_cover_all_classes(tmp_path):
    (x, y), (again, _) = (settings.images((1, 8, 8), 30, 7) for _ in range(2))
    np.testing.assert_array_equal(x, again)
    assert set(y.tolist()) == set(range(10))
    path = settings.write_npz(tmp_path / "a.npz", (1, 8, 8), 3, 2)
    before = path.stat().st_mtime_ns
    assert settings.write_npz(path, (1, 8, 8), 3, 2).stat().st_mtime_ns == before
    with np.load(path) as file:
        assert file["x_train"].dtype == np.uint8
        assert len(file["y_test"]) == 10  # never fewer than there are classes


def test_the_work_suits_the_model_and_the_device(tiny):
    small = replace(tiny, workers=None).work("cnn")
    assert (small.shape, small.workers, small.batch, small.large_batch) == (
        (1, 28, 28),
        100,
        32,
        3200,
    )
    large = replace(tiny, workers=None).work("resnet18")
    assert (large.shape, large.batch, large.small) == ((3, 32, 32), 64, False)
    on_gpu = replace(tiny, workers=None, device=torch.device("cuda", 0)).work("resnet18")
    assert (on_gpu.workers, on_gpu.large_batch) == (100, 2048)


def test_the_processor_is_named(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Fast One 3\n")
    assert cpu_model(info) == "Fast One 3"
    assert cpu_model(tmp_path / "missing")


class Silent:
    def __init__(self):
        self.ended = []

    def begins(self, what): ...

    def says(self, status): ...

    def ends(self, what, seconds):
        self.ended.append(what)


def test_one_failure_does_not_spoil_the_rest(tiny, monkeypatch):
    def broken(settings, say):
        yield a_line()
        raise ValueError("this machine cannot")

    monkeypatch.setitem(BENCHES, "trainer", broken)
    monkeypatch.delenv("DYSTOP_DEBUG", raising=False)
    done, watcher = prepare(tiny), Silent()
    measure(done, ["trainer", "mixing"], watcher)
    assert done.failed == {"trainer": "ValueError: this machine cannot"}
    assert [line.what for line in done.lines] == ["trainer", "mixing", "mixing"]
    assert watcher.ended == ["trainer", "mixing"]
    monkeypatch.setenv("DYSTOP_DEBUG", "1")
    with pytest.raises(ValueError, match="cannot"):
        measure(done, ["trainer"], watcher)


def test_measured_can_be_written_at_any_moment(tiny):
    done = Measured(tiny, {"machine": {}, "versions": {}})
    assert json.loads(json.dumps(done.document()))["lines"] == []


def test_a_result_becomes_a_markdown_table(tiny):
    done = prepare(tiny)
    done.lines.append(a_line())
    head, _, *table = markdown(done.document()).splitlines()
    assert "device cpu" in head
    assert table[2] == (
        "| trainer | cnn | 20.0 images/s | a loop | 7.50 images/s | **2.50** | 2.00 to 3.00 |"
    )
