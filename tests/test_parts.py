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
    from dystop.exchange.codecs import Part
    from dystop.exchange.rules import VotingRule
    from dystop.training.tasks.task import Classification


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


    @dataclass(frozen=True, kw_only=True)
    class HalfPrecision(dystop.Codec):
        """Two bytes for each number of a difference."""

        name = "half"
        summary = "two bytes for each number"
        usual_step = 1.0

        @property
        def parts(self):
            """One array."""
            return (Part("halves", "U8", 2 * self.width),)

        def message(self, vector, node, t, stage=0):
            """Round each number."""
            return {"halves": vector.astype("<f2").view(np.uint8)}

        def restored(self, message, node):
            """Return the rounded numbers."""
            halves = np.ascontiguousarray(message["halves"], np.uint8)
            return halves.view("<f2").astype(np.float32)


    @dataclass(frozen=True)
    class First(VotingRule):
        """The first of all models, times a factor."""

        name = "first"
        summary = "the first of all models"

        factor: Annotated[float, Gt(0)] = param(1.0, "factor of the model")

        def voted(self, models):
            """Return a model."""
            return np.float32(self.factor) * models[0]


    @dataclass(frozen=True)
    class Zero(dystop.Attack):
        """A model of zeros, or of some other number."""

        name = "zero"
        summary = "zeros"

        number: float = param(0.0, "what is sent in place of each number")

        def sent(self, known):
            """Return the same number everywhere."""
            return known.own * 0 + self.number


    class Halves(Classification):
        """Classification at half the loss."""

        name = "halves"
        summary = "half of the cross-entropy"

        def losses(self, outputs, targets):
            """Return the loss of every sample."""
            return super().losses(outputs, targets) / 2


    class Line(dystop.Model):
        """One linear layer."""

        name = "line"
        summary = "one linear layer"

        def factory(self):
            """Return what makes the layer."""
            from torch import nn

            def made(features, classes):
                return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))

            return made

'''
TRANSPORT = '''
    """A transport of threads."""

    from dataclasses import dataclass

    from dystop import param
    from dystop.config import read_experiment
    from dystop.testbed.setup.launch import other_parties
    from dystop.testbed.setup.threads import run_parties
    from dystop.testbed.setup.transports import OnThisMachine
    from dystop.testbed.transport.admission import anyone
    from dystop.testbed.transport.memory import MemoryHub, MemoryTransport


    @dataclass(frozen=True)
    class Noted(OnThisMachine):
        """Threads, and a file that names every party."""

        name = "noted"
        summary = "threads that are noted"

        file: str = param("noted.txt", "where parties are noted")

        def run(self, folder, watch, network):
            """Run all parties."""
            experiment = read_experiment(folder / "config.toml")
            with MemoryHub() as hub, open(self.file, "w") as file:

                def connected(name, allowed):
                    print(name, file=file)
                    return MemoryTransport(hub, name, None, allowed or anyone)

                run_parties(folder, watch, connected, other_parties(experiment))

'''
ENTRY_POINTS = """
    [dystop.laws]
    steady = strange_parts:SteadyLaw
    cracked = no_such_module:Law

    [dystop.mechanisms]
    crooked = no_such_module:Mechanism

    [dystop.datasets]
    stripes = strange_parts:Stripes

    [dystop.codecs]
    half = strange_parts:HalfPrecision

    [dystop.models]
    line = strange_parts:Line

    [dystop.tasks]
    halves = strange_parts:Halves

    [dystop.rules]
    first = strange_parts:First

    [dystop.attacks]
    zero = strange_parts:Zero

    [dystop.transports]
    noted = strange_transport:Noted
"""
SMALL = (
    "mechanism.name=d-psgd", "data.name=synthetic", "model.name=softmax", "fleet.workers=4",
    "stop.rounds=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange_parts.py").write_text(textwrap.dedent(PACKAGE))
    (folder / "strange_transport.py").write_text(textwrap.dedent(TRANSPORT))
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


def test_a_configuration_of_built_in_parts_imports_no_package(package):
    words = [*SMALL, "link.compression=topk", "link.fraction=0.2"]
    code = (
        "import sys; from dystop.config import read_experiment; "
        "read_experiment(None, sys.argv[1:]); sys.exit('strange_parts' in sys.modules)"
    )
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", code, *words], env=environment).returncode == 0


def test_all_mechanisms_are_those_that_can_be_used(dystop):
    words = ["--mechanisms", "all", "--seeds", "1", "--jobs", "1", "stop.rounds=1"]
    done = dystop("compare", *words, *SMALL[1:-1])
    assert done.returncode == 0, done.stderr
    assert "left out: mechanism 'crooked' from strange-parts (no_such_module:Mec" in done.stderr
    assert "d-psgd" in done.stdout


def test_a_law_decides_the_clock(dystop, tmp_path):
    words = ["engine.timing=steady", "engine.options.seconds=7.5", "--name", "mine"]
    done = dystop("run", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs" / "mine" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["clock_s"] for line in lines] == [7.5, 15.0, 22.5]


def test_a_testbed_says_that_it_follows_no_other_law(dystop):
    words = ["--transport", "memory", "testbed.time_scale=0.01", "--no-report"]
    done = dystop("testbed", *SMALL, "engine.timing=steady", *words)
    assert done.returncode == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "engine.timing = 'steady' is a law of the simulator" in said


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


def test_a_codec_packs_what_links_carry(dystop, tmp_path):
    assert "two bytes for each number" in dystop("list", "codecs").stdout
    done = dystop("run", *SMALL, "link.compression=half", "--name", "small")
    assert done.returncode == 0, done.stderr
    fleet = json.loads((tmp_path / "runs" / "small" / "fleet.json").read_text())
    said = "half: 1,300 of 2,600 bytes in a message"  # 650 numbers of softmax regression
    assert fleet["physics"]["compression"].startswith(said)
    words = ["--transport", "memory", "testbed.time_scale=0.01", "--name", "live", "--no-report"]
    live = dystop("testbed", *SMALL, "link.compression=half", *words)
    assert live.returncode == 0, live.stderr


def test_a_model_learns_a_task(dystop, tmp_path):
    assert "one linear layer" in dystop("list", "models", "line").stdout
    assert "half of the cross-entropy" in dystop("list", "tasks").stdout
    words = [*SMALL, "model.name=line", "task.name=halves", "--name", "lined"]
    done = dystop("run", *words)
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "runs" / "lined" / "config.toml").read_text()
    assert 'name = "line"' in config
    assert 'name = "halves"' in config


def test_a_rule_and_an_attack_have_parameters(dystop, tmp_path):
    assert "aggregation.options.factor" in dystop("list", "rules", "first").stdout
    assert "adversary.options.number" in dystop("list", "attacks", "zero").stdout
    words = [
        "aggregation.rule=first", "aggregation.options.factor=0.5",
        "adversary.kind=zero", "adversary.options.number=2", "adversary.workers=[1]",
    ]  # fmt: skip
    done = dystop("run", *SMALL, *words, "--name", "mine")
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "runs" / "mine" / "config.toml").read_text()
    assert "[aggregation.options]\nfactor = 0.5" in config
    assert "[adversary.options]\nnumber = 2.0" in config


def test_a_transport_runs_the_parties(dystop, tmp_path):
    assert "threads that are noted" in dystop("list", "transports").stdout
    described = dystop("list", "transports", "noted").stdout
    assert "testbed.options.file" in described
    assert "dystop testbed testbed.transport=noted" in described
    words = ["--transport", "noted", "testbed.options.file=who.txt", "testbed.time_scale=0.01"]
    done = dystop("testbed", *SMALL, *words, "--name", "live", "--no-report")
    assert done.returncode == 0, done.stderr
    noted = (tmp_path / "who.txt").read_text().split()
    assert noted == ["coordinator", "w00", "w01", "w02", "w03", "observer"]
    config = (tmp_path / "runs" / "live" / "config.toml").read_text()
    assert '[testbed.options]\nfile = "who.txt"' in config
    alone = dystop("worker", "runs/live/config.toml", "--name", "w00", "--coordinator", "h:1")
    assert "testbed.transport = 'noted': only 'dystop testbed' starts its parties" in alone.stderr


WRONG = {
    "link.compression=haf": (
        'link.compression = "haf"; expected one of half, int8, randomk, sign, topk or none; did '
        "you mean 'half'?"
    ),
    "adversary.options.strength=1": "is not used with adversary.kind = 'none'; it is with 'noise'",
    "aggregation.options.trim=1": "not used with aggregation.rule = 'mean'; it is with 'trimmed'",
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
