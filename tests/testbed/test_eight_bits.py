"""A whole testbed in this process whose links carry 8-bit models."""

import pytest

from dystop.errors import ConfigError
from dystop.experiments.config import read_experiment
from dystop.experiments.run_folder import open_run
from dystop.experiments.testbed.launch import make_folder
from dystop.experiments.testbed.threads import run_threads
from dystop.testbed.audit.check import audit_run
from support.ignored_progress import IgnoredProgress

KEYS = (
    "fleet.workers=4", "data.name=synthetic", "data.train_limit=200", "data.test_limit=50",
    "model.name=mlp", "world.range_m=200", "stop.rounds=8", "testbed.transport=memory",
    "testbed.links=free", "testbed.devices=free", "evaluate.every_rounds=4",
)  # fmt: skip


def run(tmp_path, *words):
    folder, _ = make_folder(read_experiment(None, [*KEYS, *words]), tmp_path, "run")
    run_threads(folder, IgnoredProgress())
    return folder


@pytest.mark.parametrize("name", ["d-psgd", "asyng", "gossipfl"])  # models, updates, masked models
def test_links_carry_a_quarter_of_the_bytes(tmp_path, name):
    run_ = open_run(run(tmp_path, f"mechanism.name={name}", "link.compression=int8"))
    kept = 0.1 if name == "gossipfl" else 1.0
    codes = kept * run_.fleet["model_parameters"]  # a byte each
    each = run_.records[-1].wire_bytes_total / sum(r.links for r in run_.records)
    assert 0.9 * codes < each < codes + 2500  # scales and headers
    assert run_.records[-1].accuracy is not None
    assert audit_run(run_.path).findings == []


def test_compressors_of_differences_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"link\.compression = 'topk'.*int8"):
        make_folder(read_experiment(None, [*KEYS, "link.compression=topk"]), tmp_path, "run")
