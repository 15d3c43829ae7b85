"""Parts of somebody else's package: one class and one entry point each, usable by name."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

PACKAGE = '''
    """A package that knows nothing of dystop but what it exports."""

    from dataclasses import dataclass
    from typing import Annotated

    import numpy as np
    from annotated_types import Gt

    import dystop
    from dystop import param
    from dystop.data.dataset import Splits, assemble


    @dataclass(frozen=True)
    class SteadyLaw(dystop.Law):
        """Every round lasts equally long, and everything happens at its end."""

        name = "steady"
        summary = "every round lasts equally long"
        starts_alone = False

        seconds: Annotated[float, Gt(0)] = param(5.0, "seconds of a round")

        def table(self, plan, link_s, remaining_s):
            """Return the events of a round."""
            begin = np.full(len(plan.active), self.seconds)
            zero = np.zeros(len(link_s))
            return dystop.Timetable(self.seconds, begin - begin, begin, zero, zero + self.seconds)


    @dataclass(frozen=True)
    class Stripes(dystop.DataSource):
        """Images of stripes, whose direction is the class."""

        name = "stripes"
        summary = "stripes of two directions"

        train: Annotated[int, Gt(0)] = param(40, "training images")

        def load(self, seed):
            """Return the data set of a seed."""
            labels = np.arange(self.train) % 2
            bright = np.zeros((2, 1, 8, 8), np.uint8)
            bright[0, :, ::2], bright[1, :, :, ::2] = 255, 255
            splits = Splits(bright[labels], labels, bright[labels], labels)
            return assemble(self.name, splits, classes=2, source=f"drawn from seed {seed}")
'''
ENTRY_POINTS = """
    [dystop.laws]
    steady = strange_parts:SteadyLaw
    cracked = no_such_module:Law

    [dystop.datasets]
    stripes = strange_parts:Stripes
"""
SMALL = (
    "mechanism.name=d-psgd", "data.name=synthetic", "model.name=softmax", "fleet.workers=4",
    "stop.rounds=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange_parts.py").write_text(textwrap.dedent(PACKAGE))
    info = folder / "strange_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    return folder


@pytest.fixture
def dystop(package, tmp_path):
    def call(*words):
        path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "dystop", *words], cwd=tmp_path, text=True, timeout=300,
            capture_output=True, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        )  # fmt: skip

    return call


def test_parts_are_listed_and_a_broken_one_is_a_warning(dystop):
    done = dystop("list", "laws")
    assert done.returncode == 0
    assert "every round lasts equally long" in done.stdout
    assert "cracked" not in done.stdout
    assert "left out: timing law 'cracked' from strange-parts (no_such_module:Law)" in done.stderr
    described = dystop("list", "laws", "steady")
    assert "engine.options.seconds" in described.stdout
    assert "seconds of a round" in described.stdout


def test_a_law_decides_the_clock(dystop, tmp_path):
    words = ["engine.timing=steady", "engine.options.seconds=7.5", "--name", "mine"]
    done = dystop("run", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs" / "mine" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["clock_s"] for line in lines] == [7.5, 15.0, 22.5]


def test_a_generated_data_set_is_trained_on(dystop, tmp_path):
    listed = dystop("list", "datasets")
    assert "stripes of two directions" in listed.stdout
    words = [*SMALL[2:], "data.name=stripes", "data.options.train=60", "--name", "striped"]
    done = dystop("run", "mechanism.name=d-psgd", *words)
    assert done.returncode == 0, done.stderr
    fleet = json.loads((tmp_path / "runs" / "striped" / "fleet.json").read_text())
    assert sum(fleet["data_size"]) == 60
    config = (tmp_path / "runs" / "striped" / "config.toml").read_text()
    assert "[data.options]\ntrain = 60" in config


WRONG = {
    "engine.timing=stedy": (
        'engine.timing = "stedy"; expected one of cracked, overlap, paper, steady, testbed; did '
        "you mean 'steady'?"
    ),
    "engine.timing=cracked": (
        "timing law 'cracked' from strange-parts (no_such_module:Law): cannot be imported"
    ),
    "data.options.train=0": "data.options.train = 0; expected an integer > 0 (training images)",
    "engine.options.second=1": "unknown key 'engine.options.second'",
    "engine.options.seconds=0": (
        "engine.options.seconds = 0; expected a number > 0 (seconds of a round)"
    ),
}


@pytest.mark.parametrize("word", WRONG)
def test_wrong_words_are_refused(dystop, word):
    done = dystop("run", *SMALL, "data.name=stripes", "engine.timing=steady", word)
    assert done.returncode == 2, done.stdout
    assert WRONG[word] in done.stderr.replace("\n", " "), done.stderr
