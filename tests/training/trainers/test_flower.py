"""A Flower app trains and tests as the workers of a simulation and of a testbed.

It needs a Python with flwr, in an environment of its own: DYSTOP_FLOWER_PYTHON names it. Without
it, the tests that start an app are skipped.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.errors import ConfigError, UserCodeError
from dystop.runs.building import build
from dystop.simulator import run_rounds
from dystop.simulator.round import begin
from dystop.training.params import TrainerParams
from dystop.training.trainers import flower_child
from dystop.training.trainers.flower import AppProcess, FlowerTrainer
from dystop.training.trainers.flower_child import read_frame, write_frame
from support.testbed.whole_runs import run_in_memory, run_over_grpc

PYTHON = os.environ.get("DYSTOP_FLOWER_PYTHON", "")
EXAMPLES = Path(__file__).parents[3] / "examples"
needs_flower = pytest.mark.skipif(not PYTHON, reason="DYSTOP_FLOWER_PYTHON names no Python")


APP = (
    "model.name=flower:flower_app:app", f"model.folder={EXAMPLES}", f"model.python={PYTHON}",
    "fleet.workers=3", "data.name=synthetic", "data.train_limit=60", "data.test_limit=20",
    "training.learning_rate=0.5", "stop.rounds=10", "evaluate.every_rounds=5",
    "world.range_m=200",
)  # fmt: skip


def config(*words, folder=EXAMPLES, python=PYTHON):
    place = f"model.folder={folder}", f"model.python={python}"
    return read_experiment(None, [*APP, *place, *words])


def test_a_frame_arrives_as_it_was_sent(tmp_path):
    file, arrays = tmp_path / "frames", [np.ones((2, 3), np.float32), np.array([7])]
    with file.open("wb") as stream:
        write_frame(stream, {"kind": "train"}, arrays)
    with file.open("rb") as stream:
        header, found = read_frame(stream)
        assert read_frame(stream) is None
    assert header == {"kind": "train"}
    for sent, got in zip(arrays, found, strict=True):
        assert sent.dtype == got.dtype
        np.testing.assert_array_equal(sent, got)


STAND_IN = """#!{python}
import os, sys, time
import numpy as np
from dystop.training.trainers.flower_child import read_frame, write_frame

answers = os.fdopen(os.dup(1), "wb")
write_frame(answers, {{"ready": True}}, [])
while (frame := read_frame(sys.stdin.buffer)) is not None:
    names, arrays = ["a", "b"], [np.ones(2, np.float32), np.array([3])]
    if frame[0]["kind"] == "train":
        {train}
    else:
        {query}
    write_frame(answers, {{"names": names, "loss": 1.0, "score": 1.0}}, arrays)
"""


def app_that(tmp_path, train="pass", query="pass"):
    """Return the process of an app that answers in a given way, without flwr."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable, train=train, query=query))
    program.chmod(0o755)
    return AppProcess("flower:mine:app", "", str(program), 2)


def train_one(app):
    trainer = FlowerTrainer(app, 2, np.array([8, 8]), TrainerParams(batch=4, learning_rate=0.1))
    vector, counters = trainer.initial()
    one = np.array([1])
    return trainer.train(vector[None], counters[None], one, np.array([0, 0]), np.array([1, 1]))


def test_a_good_reply_is_taken(tmp_path):
    assert train_one(app_that(tmp_path, "pass")).losses.tolist() == [1.0]


@pytest.mark.parametrize(
    ("train", "fact"),
    [
        ("arrays[0] = np.array([1, 2])", "kinds"),
        ("arrays[1] = np.array([1.5])", "kinds"),
        ("arrays[0] = arrays[0][:1]", "shapes"),
        ("names = ['b', 'a']", "names"),
        ("names, arrays = names[:1], arrays[:1]", "names"),
    ],
)
def test_a_reply_with_other_arrays_is_the_error_of_the_app(tmp_path, train, fact):
    with pytest.raises(UserCodeError, match=f"'train' of worker 1 .* their {fact} "):
        train_one(app_that(tmp_path, train))


def test_an_app_that_hangs_is_named_and_ended(tmp_path):
    app = app_that(tmp_path, "time.sleep(3600)")
    app._answer_s = 1.0  # the start may take longer
    with pytest.raises(UserCodeError, match="no answer within 1 s"):
        train_one(app)
    assert app._process.wait() != 0


@pytest.mark.parametrize("sent", ["1", "1, 0, 0, 0, 0, 0, 0, 0", "2, 0, 0, 0, 0, 0, 0, 0, 123"])
def test_an_app_that_ends_in_the_middle_of_its_answer_is_named(tmp_path, sent):
    app = app_that(tmp_path, f"answers.write(bytes([{sent}])); answers.flush(); os._exit(3)")
    with pytest.raises(UserCodeError, match="its process has ended with code 3"):
        train_one(app)


@pytest.mark.parametrize("query", ["arrays = [np.array([1]), np.array([3])]",
                                   "arrays[1] = np.array(['text'])",
                                   "arrays[1] = np.array([1j])"])  # fmt: skip
def test_first_arrays_that_are_no_model_are_the_error_of_the_app(tmp_path, query):
    with pytest.raises(ConfigError, match="must reply with an ArrayRecord"):
        train_one(app_that(tmp_path, query=query))


def test_an_app_ends_in_the_middle_of_a_training(tmp_path):
    """As after Ctrl-C: nobody waits for its answer."""
    app = app_that(tmp_path, "time.sleep(3600)")
    process = app._process
    write_frame(process.stdin, {"kind": "train"}, [])
    del app
    assert process.poll() is not None


FLWR = """
class Context:
    def __init__(self, **_): pass
class Message(Context): pass
class RecordDict(dict): pass
Array = ArrayRecord = None
ConfigRecord = dict
"""


@pytest.fixture
def child_of(tmp_path):
    """Return a function that starts the process of an app, with a stand-in for flwr."""

    def start(app):
        (tmp_path / "flwr").mkdir()
        (tmp_path / "flwr" / "__init__.py").touch()
        (tmp_path / "flwr" / "app.py").write_text(FLWR)
        (tmp_path / "mine.py").write_text(app)
        words = [sys.executable, flower_child.__file__, "mine:app", str(tmp_path), "1"]
        pipe = subprocess.PIPE
        child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        assert read_frame(child.stdout) == ({"ready": True}, [])
        return child

    return start


def test_the_process_of_an_app_ignores_ctrl_c(child_of):
    """A terminal sends it to both processes; dystop ends its run in order."""
    child = child_of("app = None\n")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=1200)  # its standard input ends
    assert child.returncode == 0


def test_an_app_that_trains_for_long_ends_soon_after_ctrl_c(child_of):
    """Dystop waits for the answer, and would for an hour."""
    wait = "print('begun', flush=True); time.sleep(3600)"
    child = child_of(f"import time\ndef app(message, context): {wait}\n")
    write_frame(child.stdin, {"kind": "train", "worker": 0, "names": [], "config": {}}, [])
    assert child.stderr.readline() == b"begun\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=1200)
    assert child.returncode == -signal.SIGALRM


@needs_flower
@pytest.mark.parametrize("name", ["dystop", "d-psgd"])
def test_an_app_learns_without_a_server(name):
    components = build(config(f"mechanism.name={name}")).components
    records = [record for record, _ in run_rounds(components, begin(components))]
    assert records[-1].get("test_loss") < records[4].get("test_loss") < 1.0
    assert records[-1].loss is not None
    assert components.fleet.model_bytes == 8  # slope and offset


@needs_flower
@pytest.mark.parametrize("run", [run_in_memory, run_over_grpc])
def test_an_app_learns_on_a_testbed(tmp_path, run):
    last = run(tmp_path, *APP, "mechanism.name=d-psgd").records[-1]
    assert last.get("test_loss") is not None
    assert last.get("test_loss") < 1.0


@needs_flower
def test_the_example_runs(tmp_path):
    words = f"model.python={PYTHON}", "stop.rounds=2", "evaluate.every_rounds=2"
    components = build(read_experiment(EXAMPLES / "flower.toml", [*words])).components
    *_, (last, _) = run_rounds(components, begin(components))
    assert last.get("test_loss") is not None


@needs_flower
def test_an_app_that_fails_is_named_with_its_worker(tmp_path):
    text = (EXAMPLES / "flower_app.py").read_text()
    (tmp_path / "flower_app.py").write_text(
        text.replace(
            "    for _ in range(20):", "    raise RuntimeError('no disk')\n    while True:"
        )
    )
    with pytest.raises(UserCodeError, match=r"'train' of worker 0 failed.*no disk"):
        begin(build(config(folder=tmp_path)).components)


@needs_flower
def test_an_app_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"flower_app.*model\.folder"):
        build(config(folder=tmp_path))


def test_a_python_without_flwr_is_named():
    with pytest.raises(ConfigError, match=r"flwr.*model\.python.*pip install flwr"):
        build(config(python=sys.executable))
    with pytest.raises(ConfigError, match=r"model\.python = '/nowhere/python'"):
        build(config(python="/nowhere/python"))


@pytest.mark.parametrize(
    "word", ["privacy.noise_multiplier=1", "adversary.kind=flip", "engine.train=false"]
)
def test_what_an_app_cannot_do_is_refused(word):
    with pytest.raises(ConfigError, match="flower"):
        build(config(word, python=sys.executable))
