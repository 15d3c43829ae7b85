"""Freeze what runs do, change the code, and see that they still do it.

    python scripts/freeze.py run old.json                             before the change
    python scripts/freeze.py run new.json --jobs 2                    after it
    python scripts/freeze.py compare old.json new.json

Both runs need the same machine, because floats depend on it; results are therefore not kept in the
repository. To freeze another tree with this script, put it in front:

    PYTHONPATH=../other/src python scripts/freeze.py run old.json

The cases are small runs of every mechanism under every timing law and publish rule, with rounds
side by side and one after another (`engine.ahead`), with compiled kernels and without; mechanisms
that carry vectors (`examples/mechanisms`); every option of the configuration that changes a round;
what mechanisms and options refuse; runs that are
stopped or killed and resumed; tasks and models; and clusters of the testbed in virtual time, with
the messages and bytes of each round. `--paper-scale` adds runs of 100 workers and a CNN, `--gpu`
the same on a GPU and its back ends. `--only` takes a part of a name, or a pattern with `*`.

Of each case the output has digests of its records and of its final models. A record counts as its
leaves, by name: the order and the grouping of its fields are free, and a field that is null or
empty is as good as none. `fields` has a digest of each field, so that a difference has a place.
Groups of cases run in a process each, whose peak memory is noted; the first run of a tree compiles
its kernels, which takes memory too, so run a new tree twice before memory is believed. Only
the Python API, the command line, keys as words and the files of run folders are used, so that the
script survives what it is made for; `tests/virtual` of the tree that is run plays the clusters.

The script checks what dystop promises, too: the same records and models with rounds side by side,
without kernels, and after a resume. The exit code is 0, or 1 if a promise is broken or, of
`compare`, if anything differs or a group needs 5 % more memory, or 2 if a case ends in an error
that is no refusal.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

Result = dict[str, Any]

LAWS = ("paper", "overlap", "testbed")
RULES = ("eager", "on_completion")
MORE_MEMORY = 1.05
MECHANISMS = (
    "dystop", "ad-psgd", "braintorrent", "epidemic", "gossipfl", "matcha", "d-cliques", "d-psgd",
    "fedavg", "asydfl", "asyng", "fedasync", "fedsa", "sa-adfl", "fedhp", "hadfl", "l2pl",
)  # fmt: skip
FEW = ("dystop", "sa-adfl", "asyng", "d-psgd", "fedasync")  # one of every way to exchange models
CARRYING = ("push_sum:PushSum", "kgt:KGT", "noloco:NoLoCo")  # vectors beside the model (examples/)

SMALL = (
    "seed=3 fleet.workers=8 world.range_m=25 data.name=synthetic data.options.train=240"
    " data.options.test=60 data.options.shape=[1,4,4] model.name=softmax stop.rounds=12"
    " evaluate.every_rounds=4 training.device=cpu training.batch=16 training.lanes=1"
    " output.models=all output.topology=full"
)
LARGE = "fleet.workers=80 data.options.train=800 stop.rounds=6 training.lanes=2"
HARSH = (
    "world.churn.enabled=true world.churn.mean_up_s=0.2 world.churn.mean_down_s=0.05"
    " world.mobility.enabled=true world.mobility.speed_mps=[50,100]"
    " world.mobility.pause_s=[0,0.01] world.outages.drop=0.1 world.outages.loss=0.1"
)
PRIVATE = "privacy.noise_multiplier=0.8 privacy.clip=0.5"
ADAM = "training.optimizer=adam training.learning_rate=0.01 training.optimizer_state="
MOMENTUM = "training.momentum=0.9 training.optimizer_state="
EXAMPLES = "mechanism.folder={examples}"
LORA = "model.base={base} model.name=mlp model.adapter=lora model.lora.rank=2"

OPTIONS = {
    "topk": "link.compression=topk",
    "randomk": "link.compression=randomk link.fraction=0.3",
    "int8": "link.compression=int8",
    "sign": "link.compression=sign",
    "privacy": PRIVATE,
    "energy": "energy.enabled=true energy.per_worker=true",
    "energy-jetson": "energy.enabled=true energy.boards=jetson world.compute.devices=jetson",
    "churn": "world.churn.enabled=true world.churn.mean_up_s=0.1 world.churn.mean_down_s=0.05",
    "mobility": "world.mobility.enabled=true world.mobility.speed_mps=[50,100]",
    "outages": "world.outages.drop=0.2 world.outages.loss=0.2",
    "harsh": HARSH,
    "budget": "world.budget.binds=everybody world.budget.models=3",
    "no-budget": "world.budget.binds=nobody",
    "stale-constant": "staleness.rule=constant staleness.share=0.5",
    "stale-polynomial": "staleness.rule=polynomial",
    "stale-hinge": "staleness.rule=hinge staleness.limit=1",
    "stale-discard": "staleness.rule=discard staleness.limit=2",
    "stale-rate": "staleness.rule=learning-rate",
    "stale-compensate": "staleness.rule=compensate",
    "momentum-reset": MOMENTUM + "reset",
    "momentum-kept": MOMENTUM + "kept",
    "momentum-mixed": MOMENTUM + "mixed training.nesterov=true",
    "adam-reset": ADAM + "reset",
    "adam-kept": ADAM + "kept",
    "adam-mixed": ADAM + "mixed",
    "adamw": ADAM.replace("adam", "adamw") + "mixed training.weight_decay=0.01",
    "training": (
        "training.l2=0.01 training.clip_norm=1 training.schedule.name=cosine"
        " training.schedule.steps=20 training.schedule.warmup=3 training.augment.flip=true"
    ),
    "local-steps": "training.local_steps=3",
    "epochs": "training.epochs=2",
    "rule-clip": "aggregation.rule=clip",
    "rule-agree": "aggregation.rule=agree",
    "rule-trimmed": "aggregation.rule=trimmed",
    "rule-median": "aggregation.rule=median",
    "rule-nearest": "aggregation.rule=nearest",
    **{
        f"attack-{kind}": f"adversary.kind={kind}"
        for kind in ("flip", "noise", "replay", "alie", "ipm", "ipm-near", "label-flip")
    },
    "attack-trimmed": "adversary.kind=flip aggregation.rule=trimmed",
    "attack-agree": "adversary.kind=alie adversary.workers=[1,2] aggregation.rule=agree",
    "warm-start": "model.base={base} model.name=mlp",
    "lora": LORA,
    "lora-adam-mixed": f"{LORA} {ADAM}mixed",
    "aggregated": "evaluate.model=aggregated",
    "per-worker": "evaluate.per_worker=true evaluate.samples=20",
    "by-time": "evaluate.every_s=0.02 stop.seconds=0.2",
    "target": "stop.accuracy=0.3",
    "counts": "output.topology=counts",
    "overlay": "world.reach=overlay",
    "channel": "world.channel.noise=squared world.channel.fading=false world.range_m=200",
    "iid": "data.partition=iid",
    "shards": "data.partition=shards",
    "quantity": "data.partition=quantity",
    "power-law": "data.partition=power-law",
    "planned": "engine.train=false",
    "path-stacked": "training.path=stacked",
    "path-sequential": "training.path=sequential",
    "bfloat16": "training.precision=bfloat16",
    "topk-privacy-harsh": f"link.compression=topk {PRIVATE} {HARSH} energy.enabled=true",
    "int8-adam-attack": f"link.compression=int8 {ADAM}mixed adversary.kind=noise",
    "stale-budget-momentum": (
        f"staleness.rule=hinge staleness.limit=1 world.budget.binds=everybody"
        f" world.budget.models=3 {MOMENTUM}kept {HARSH}"
    ),
    "rule-privacy-energy": f"aggregation.rule=median {PRIVATE} energy.enabled=true",
}
ATTACKS = ("flip", "noise", "replay", "alie", "ipm", "ipm-near", "label-flip")
AGGREGATIONS = ("clip", "agree", "trimmed", "median", "nearest")
VARIANTS = {
    "dystop": (
        "phases=first", "phases=second", "estimate=max", "estimate=last", "estimate=ranked",
        "drift=mean", "V=50 staleness_bound=4", "neighbours=2 distance_max_m=20",
    ),
    "braintorrent": ("variant=original",),
    "epidemic": ("variant=local", "pairs=all neighbours=2"),
    "gossipfl": ("keep=1.0", "steps=4"),
    "matcha": ("base=fastest", "base=reach", "weights=optimal", "budget=1.0 refresh=5"),
    "d-cliques": ("clique_size=3 inter=fractal", "clique_size=3 inter=smallworld clique_avg=false"),
    "d-psgd": (
        "topology=random-regular", "topology=complete pairs=all", "weights=optimal refresh=5",
        "weights=size",
    ),
    "fedavg": ("participation=0.4",),
    "asydfl": ("fanout=2", "quality=distance", "payload=delta", "background=true", "wakes=one"),
    "asyng": ("fanout=2", "weights=full", "background=true", "resync=3", "wakes=one"),
    "fedasync": ("decay=constant", "decay=hinge limit=1"),
    "fedsa": ("arrivals=3 server_share=0.5",),
    "sa-adfl": ("sends=mixed", "mail=latest", "background=true"),
    "fedhp": ("weights=uniform", "tau_max=4 tau_min=1"),
    "hadfl": ("members=3", "periods=2"),
    "l2pl": ("degree_mean=2 pretrain=3", "labels=true"),
}  # fmt: skip
TASKS = {
    "mlp": "model.name=mlp",
    "cnn": "data.name=fmnist-mini data.train_limit=300 data.test_limit=60 model.name=cnn",
    "cnn-stacked": (
        "data.name=fmnist-mini data.train_limit=300 data.test_limit=60 model.name=cnn"
        " training.path=stacked"
    ),
    "batch-norm": "evaluate.statistics=recomputed",
    "table": "data.name=generated-table data.options.train=240 data.options.test=60 model.name=mlp",
    "regression": (
        "data.name=generated-table data.options.train=240 data.options.test=60 task.name=regression"
        " model.name=mlp training.learning_rate=0.01"
    ),
    "text": (
        "data.name=generated-text data.options.train=80 data.options.test=20 data.options.length=8"
        " model.name=transformer"
    ),
}
STOPPED = {
    "plain": "",
    "momentum-kept": OPTIONS["momentum-kept"],
    "adam-mixed": OPTIONS["adam-mixed"],
    "topk": OPTIONS["topk"],
    "int8": OPTIONS["int8"],
    "privacy": PRIVATE,
    "harsh": HARSH,
    "lora": LORA,
    "stale-rate": OPTIONS["stale-rate"],
    "replay": "adversary.kind=replay aggregation.rule=median",
    "energy-harsh": f"{OPTIONS['energy']} {HARSH}",
    "budget-adam-kept": f"{OPTIONS['budget']} {ADAM}kept",
}
STOPPED_CARRYING = {
    **{name: STOPPED[name] for name in ("plain", "momentum-kept", "adam-mixed", "topk", "privacy")},
    "churn": OPTIONS["churn"],
    "lora": f"{LORA} training.learning_rate=0.01",  # push-sum divides steps by small weights
}
LONG = "stop.rounds=150 evaluate.every_rounds=20 output.checkpoint_every=10"
KILLED = {
    "dystop": "",
    "ad-psgd": OPTIONS["momentum-kept"],
    "sa-adfl": f"{ADAM}mixed {HARSH}",
    "asyng": f"{PRIVATE} link.compression=topk",
    "push_sum:PushSum": OPTIONS["churn"],
    "kgt:KGT": "training.learning_rate=0.01",
    "noloco:NoLoCo": f"{ADAM}mixed",
}
CRASHES = ("before-fsync", "after-fsync", "before-replace", "after-replace")  # of a write
CRASHED = {
    **{name: ("dystop", STOPPED[name]) for name in ("momentum-kept", "adam-mixed", "topk")},
    "privacy": ("dystop", PRIVATE),
    "churn": ("dystop", OPTIONS["churn"]),
    "lora": ("dystop", LORA),
    "carried": ("noloco:NoLoCo", ""),
    "carried-own-rows": ("push_sum:PushSum", OPTIONS["momentum-kept"]),
    "carried-correction": ("kgt:KGT", "training.learning_rate=0.01"),
}
PAPER = (
    "seed=1 fleet.workers=100 data.name={images} data.phi=0.4 model.name=cnn stop.rounds=12"
    " evaluate.every_rounds=6 training.local_steps=4 output.topology=full"
)
GPU = {
    "auto": "",
    "fused": "training.path=fused",
    "stacked": "training.path=stacked",
    "sequential": "training.path=sequential fleet.workers=20",
    "bfloat16": "training.path=stacked training.precision=bfloat16",
    "compile": "training.path=stacked training.compile=true fleet.workers=20",
    "adam-mixed": f"{ADAM}mixed",
    "topk": "link.compression=topk",
    "privacy": PRIVATE,
    "lora": "model.base={base} model.adapter=lora",
    "rule-median": "aggregation.rule=median",
}


@dataclass(frozen=True)
class Case:
    """One run, and how it is carried out."""

    name: str
    mechanism: str
    words: tuple[str, ...] = ()  # keys and values
    how: str = "simulated"  # stopped, killed, or of CRASHES: and resumed; played: in virtual time
    group: str = ""
    kernels: bool = True


# The matrix ---------------------------------------------------------------------------------------


def all_cases(*, paper_scale: bool, gpu: bool) -> Iterator[Case]:
    """Yield every case; those of a group run in one process, in this order."""
    yield from _base()
    yield from _options()
    yield from _variants()
    yield from _carrying()
    yield from _large()
    yield from _tasks()
    yield from _resumes()
    yield from _crashes()
    yield from _testbed()
    if paper_scale:
        yield from _paper("cpu")
    if gpu:
        yield from _paper("cuda")
        yield from _gpu()


def _twins(
    name: str, mechanism: str, words: str, group: str, *, plain: bool = True
) -> Iterator[Case]:
    """Yield a case with rounds side by side, and with one round after another."""
    has_data = "data.name=" in words  # the options of another data set would be refused
    usual = (w for w in SMALL.split() if not (has_data and w.startswith("data.")))
    ahead = (*usual, *words.split())
    yield Case(f"{name}/ahead", mechanism, ahead, group=group)
    if plain:
        yield Case(f"{name}/plain", mechanism, (*ahead, "engine.ahead=false"), group=group)


def _without_kernels(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield cases, and each of them without compiled kernels."""
    for case in cases:
        yield case
        name, group = f"{case.name}/numpy", f"{case.group}-numpy"
        yield Case(name, case.mechanism, case.words, case.how, group, kernels=False)


def _law(number: int) -> tuple[str, str]:
    """Return a name and the words of the law and the rule that options take in turns."""
    law, rule = LAWS[number % 3], RULES[number // 3 % 2]
    return f"{law}-{rule}", f"engine.timing={law} engine.publish={rule}"


def _base() -> Iterator[Case]:
    for mechanism in MECHANISMS:
        for number in range(len(LAWS) * len(RULES)):
            name, law = _law(number)
            half = f"base-{1 + MECHANISMS.index(mechanism) % 2}"
            twins = _twins(f"base/{mechanism}/{name}", mechanism, law, half)
            yield from _without_kernels(twins)


def _options() -> Iterator[Case]:
    for number, (option, words) in enumerate(OPTIONS.items()):
        for k, mechanism in enumerate(MECHANISMS):
            name, law = _law(number + k)
            yield from _twins(
                f"option/{option}/{mechanism}/{name}", mechanism, f"{law} {words}",
                f"option-{1 + number // 10}", plain=mechanism in FEW,
            )  # fmt: skip
    for number, rule in enumerate(AGGREGATIONS):
        for k, attack in enumerate(ATTACKS):
            name, law = _law(number + k)
            words = f"{law} adversary.kind={attack} adversary.share=0.3 aggregation.rule={rule}"
            for mechanism in ("dystop", "d-psgd"):
                full = f"attack/{attack}/{rule}/{mechanism}/{name}"
                yield from _twins(full, mechanism, words, "attack", plain=mechanism == "dystop")


def _variants() -> Iterator[Case]:
    for mechanism, variants in VARIANTS.items():
        for number, variant in enumerate(variants):
            name, law = _law(number)
            words = " ".join(f"mechanism.{word}" for word in variant.split())
            full = f"variant/{mechanism}/{variant.replace(' ', ',')}/{name}"
            yield from _without_kernels(_twins(full, mechanism, f"{law} {words}", "variant"))


def _carrying() -> Iterator[Case]:
    options = {"calm": "", "momentum": OPTIONS["momentum-mixed"], "adam": OPTIONS["adam-kept"]}
    for mechanism in CARRYING:
        for number, (option, words) in enumerate(options.items()):
            name, law = _law(number)
            full = f"carrying/{option}/{mechanism}/{name}"
            twins = _twins(full, mechanism, f"{EXAMPLES} {law} {words}", "carrying")
            yield from _without_kernels(twins)


def _large() -> Iterator[Case]:
    """Yield fleets with more links than a kernel for few links takes."""
    for number, mechanism in enumerate(MECHANISMS):
        name, law = _law(number)
        for kind, words in (("trained", ""), ("planned", "engine.train=false"), ("harsh", HARSH)):
            full = f"large/{kind}/{mechanism}/{name}"
            twins = _twins(
                full, mechanism, f"{law} {LARGE} {words}", "large", plain=kind == "trained"
            )
            yield from _without_kernels(twins)


def _tasks() -> Iterator[Case]:
    for number, (task, words) in enumerate(TASKS.items()):
        for k, mechanism in enumerate(FEW[:3]):
            name, law = _law(number + k)
            full, words_ = f"task/{task}/{mechanism}/{name}", f"{law} {words} stop.rounds=6"
            yield from _twins(full, mechanism, words_, "task", plain=k < 2)


def _resumes() -> Iterator[Case]:
    few = ("dystop", "asydfl", "matcha", "asyng")
    for options, mechanisms in ((STOPPED, few), (STOPPED_CARRYING, CARRYING)):
        for number, (option, words) in enumerate(options.items()):
            for k, mechanism in enumerate(mechanisms):
                name, law = _law(number + k)
                full = f"resume/{option}/{mechanism}/{name}"
                words_ = (*SMALL.split(), *_folder(mechanism), *law.split(), *words.split())
                yield Case(f"{full}/whole", mechanism, words_, group="resume")
                yield Case(f"{full}/stopped", mechanism, words_, "stopped", "resume")
    for number, (mechanism, words) in enumerate(KILLED.items()):
        name, law = _law(number)
        own = _folder(mechanism)
        words_ = (*SMALL.split(), *own, *LONG.split(), *law.split(), *words.split())
        yield Case(f"kill/{mechanism}/{name}/whole", mechanism, words_, group="kill")
        yield Case(f"kill/{mechanism}/{name}/killed", mechanism, words_, "killed", "kill")


def _crashes() -> Iterator[Case]:
    """Yield runs that are killed at every step of a write, each with its whole twin."""
    for number, (option, (mechanism, words)) in enumerate(CRASHED.items()):
        name, law = _law(number)
        full, own = f"crash/{option}/{name}", _folder(mechanism)
        words_ = (*SMALL.split(), *own, *law.split(), *words.split())
        words_ = (*words_, "stop.rounds=60", "output.checkpoint_every=10")
        yield Case(f"{full}/whole", mechanism, words_, group="crash")
        for crash in CRASHES:
            yield Case(f"{full}/{crash}", mechanism, words_, crash, "crash")


def _folder(mechanism: str) -> Sequence[str]:
    """Return the words that say where a mechanism outside the package lies."""
    return EXAMPLES.split() if mechanism in CARRYING else ()


def _testbed() -> Iterator[Case]:
    for mechanism in MECHANISMS:
        for codec in ("", "topk", "sign"):
            name = f"testbed/{codec or 'calm'}/{mechanism}"
            yield Case(name, mechanism, (codec,), "played", "testbed")
    for seed in range(12):
        codec = ("", "randomk")[seed % 2]
        yield Case(f"testbed/faults/{seed}", "dystop", (codec, str(seed)), "played", "testbed")


def _paper(device: str) -> Iterator[Case]:
    """Yield runs as large as the paper's; each has a process of its own."""
    for number, mechanism in enumerate(("dystop", "sa-adfl", "matcha")):
        name, law = _law(number)
        full = f"paper/{device}/{mechanism}/{name}"
        words = (*PAPER.split(), f"training.device={device}", *law.split())
        yield Case(full, mechanism, words, group=full)


def _gpu() -> Iterator[Case]:
    for option, words in GPU.items():
        for mechanism in ("dystop", "asyng", "matcha"):
            words_ = (*PAPER.split(), "training.device=cuda", "stop.rounds=6", *words.split())
            yield Case(f"gpu/{option}/{mechanism}", mechanism, words_, group=f"gpu-{option}")


# One case -----------------------------------------------------------------------------------------


class Bench:
    """Where the cases of a process run: its folder, and what several of them need."""

    def __init__(self, folder: Path) -> None:
        """Use an empty folder."""
        self.folder = folder
        self._made = 0
        self._bases: dict[bool, Path] = {}

    def new(self) -> Path:
        """Return a path that nobody uses."""
        self._made += 1
        return self.folder / str(self._made)

    def words(self, case: Case) -> list[str]:
        """Return the words of a case with the names of its data and of its base."""
        words = [word.replace("{images}", _images()) for word in case.words]
        words = [word.replace("{examples}", _examples()) for word in words]
        if any("{base}" in word for word in words):
            base = str(self._base(is_large=case.name.startswith("gpu")))
            words = [word.replace("{base}", base) for word in words]
        return words

    def _base(self, *, is_large: bool) -> Path:
        """Return a run whose model others begin with."""
        if is_large not in self._bases:
            words = PAPER.replace("{images}", _images()).split() if is_large else SMALL.split()
            own = ["fleet.workers=4", f"model.name={'cnn' if is_large else 'mlp'}", "stop.rounds=3"]
            folder = self.new()
            _simulated("d-psgd", [*words, *own, "training.device=cpu"], folder)
            self._bases[is_large] = folder
        return self._bases[is_large]


def _examples() -> str:
    """Return the folder of mechanisms outside the package, of the tree that is run."""
    import dystop

    return str(Path(dystop.__file__).parents[2] / "examples" / "mechanisms")


def _images() -> str:
    """Return the paper's data set if it lies on this machine, else the part that is built in."""
    global _found
    if not _found:
        import dystop

        words = ["data.name=fashion-mnist", "data.download=false", "model.name=softmax"]
        try:
            dystop.simulate("d-psgd", workers=2, rounds=1, overrides=words)
            _found = "fashion-mnist"
        except dystop.DataError:
            _found = "fmnist-mini"
    return _found


_found = ""


def _batch_norm() -> Any:
    """Return a model with counters beside its weights, which is an object and no name."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
    )
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.linspace(-0.2, 0.2, tensor.numel()).sin().view(tensor.shape))
    return model


def _simulated(
    mechanism: str, words: Sequence[str], folder: Path, stop_at: int = 0, model: Any = None
) -> None:
    """Run a simulation and save its folder; a `stop_at` ends it at a test from that round on."""
    import dystop

    class StopAt(dystop.Callback):
        def on_evaluation(self, evaluation: Any) -> None:
            if evaluation.record.round >= stop_at:
                evaluation.stop("stopped by freeze")

    callbacks = [StopAt()] if stop_at else []
    try:
        simulation = dystop.simulate(mechanism, overrides=words, callbacks=callbacks, model=model)
    except dystop.DystopError as error:
        raise Refused(error) from error
    simulation.run()
    simulation.save(folder)


class Refused(Exception):
    """The product refuses a combination before its first round."""


def _stopped(case: Case, bench: Bench) -> Result:
    """Stop a run at a test, save it, and resume it from the command line."""
    folder = bench.new()
    _simulated(case.mechanism, bench.words(case), folder, stop_at=6)
    status = json.loads((folder / "run.json").read_text())["status"]
    if status != "interrupted":
        raise AssertionError(f"the stopped run is {status}")
    _command("resume", str(folder), "--no-report", "--quiet")
    return facts_of(folder)


def _killed(case: Case, bench: Bench) -> Result:
    """Kill the process of a run somewhere in the middle, or while it writes, and resume it."""
    folder = bench.new()
    words = [f"mechanism.name={case.mechanism}", *bench.words(case)]
    where = ["--out", str(folder.parent), "--name", folder.name, "--no-report", "--quiet"]
    begin = ["-m", "dystop"]
    if case.how in CRASHES:
        begin = ["-c", CRASHING, case.how, str(folder / "records.jsonl")]
    command = [sys.executable, *begin, "run", *words, *where]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        if case.how == "killed":
            while process.poll() is None and _lines(folder) < 40:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
    status = json.loads((folder / "run.json").read_text())["status"]
    if process.returncode != -signal.SIGKILL or status != "running":
        raise AssertionError(f"the run is {status}, exit code {process.returncode}: {said}")
    _command("resume", str(folder), "--no-report", "--quiet")
    return facts_of(folder)


CRASHING = """
import os, signal, sys
(when, name), log = sys.argv[1].split("-"), sys.argv[2]
do = getattr(os, name)

def crash(*args, **words):
    due = os.path.exists(log) and open(log, "rb").read().count(b"\\n") >= 25
    if not (due and when == "before"):
        do(*args, **words)
    if due:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(os, name, crash)
sys.argv = ["dystop", *sys.argv[3:]]
from dystop.__main__ import main
main()
"""


def _lines(folder: Path) -> int:
    try:
        return (folder / "records.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _command(*words: str) -> None:
    """Run a command of dystop in this process; raise AssertionError if it fails."""
    from dystop.__main__ import main

    before, sys.argv, said = sys.argv, ["dystop", *words], io.StringIO()
    code: Any = 0
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    if code:
        raise AssertionError(f"dystop {' '.join(words)} ended with {code}: {said.getvalue()}")


def _played(case: Case) -> Result:
    """Play a cluster of the testbed in virtual time, with the tests of the tree that is run."""
    import dystop

    tests = str(Path(dystop.__file__).parents[2] / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    from virtual.traffic import played

    codec, *seed = case.words
    lines, traffic = played(case.mechanism, codec, *map(int, seed))
    totals = [sum(column) for column in zip(*traffic, strict=True)]
    names = ("messages", "message_bytes", "pulls", "pull_bytes")
    return {**digests(lines), "traffic": traffic, **dict(zip(names, totals, strict=True))}


def carried_out(case: Case, bench: Bench) -> Result:
    """Run a case; return its facts, its refusal or its error."""
    try:
        if case.how == "played":
            return _played(case)
        if case.how == "stopped":
            return _stopped(case, bench)
        if case.how in ("killed", *CRASHES):
            return _killed(case, bench)
        folder = bench.new()
        words, own = bench.words(case), None
        if "/batch-norm/" in case.name:
            words, own = [w for w in words if not w.startswith("model.")], _batch_norm()
        _simulated(case.mechanism, words, folder, model=own)
        return facts_of(folder)
    except Refused as refusal:
        error = refusal.args[0]
        text = str(error).replace(str(bench.folder), "")
        return {"refused": type(error).__name__, "text": text}
    except Exception:
        return {"error": traceback.format_exc()}


# What is frozen -----------------------------------------------------------------------------------


def facts_of(folder: Path) -> Result:
    """Return the digests of a run folder, and what trained it."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    fleet = json.loads((folder / "fleet.json").read_text())
    back_end = f"{fleet.get('training_path')} on {fleet.get('device')}"
    kernels = any(name.startswith("dystop.kernels") for name in sys.modules)
    return {
        **digests(lines),
        "models": _models_digest(folder / "models"),
        "back_end": back_end,
        "kernels": kernels,
    }


def digests(lines: Sequence[str]) -> Result:
    """Return the number of records and the digests of their canonical form.

    >>> one = digests(['{"round": 1, "loss": 0.5, "notes": {}, "epsilon": null}'])
    >>> two = digests(['{"part": {"loss": 0.5}, "round": 1}'])
    >>> one == two, one["rounds"], sorted(one["fields"])
    (True, 1, ['loss', 'round'])
    """
    values: defaultdict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(lines):
        leaves = Counter(f"{name}={value}" for name, value in _leaves("", json.loads(line)))
        for leaf in sorted(leaves.elements()):
            name, _, value = leaf.partition("=")
            values[name].append(f"{number}:{value}")
    fields = {name: _sha256("\n".join(values[name])) for name in sorted(values)}
    whole = _sha256("\n".join(f"{name} {digest}" for name, digest in fields.items()))
    short = {name: digest[:8] for name, digest in fields.items()}
    return {"rounds": len(lines), "records": whole, "fields": short}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values of a record by the last of their names; none for null and what is empty."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(key, part)
    elif value is not None and value != []:
        yield name, repr(value)


def _models_digest(folder: Path) -> str:
    """Return a digest of the tensors of all models, without what their files say about them."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{path.name} {name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Processes ----------------------------------------------------------------------------------------


def _serve(cases: Sequence[Case], results: Connection) -> None:
    """Run the cases of a group in this process; send each result, and last the peak memory."""
    if not cases[0].kernels:
        os.environ["DYSTOP_KERNELS"] = "off"  # before dystop is imported
    with TemporaryDirectory(prefix="freeze-") as folder:
        bench = Bench(Path(folder))
        for case in cases:
            began_s = time.monotonic()
            result = carried_out(case, bench)
            result["seconds"] = round(time.monotonic() - began_s, 2)
            results.send((case.name, result))
    results.send(("", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def run_group(cases: Sequence[Case]) -> tuple[dict[str, Result], Result]:
    """Run cases in a new process; return their results, and its peak memory and seconds."""
    context, began_s = multiprocessing.get_context("spawn"), time.monotonic()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(cases, theirs))
    process.start()
    theirs.close()
    found: dict[str, Result] = {}
    peak_kib = 0
    try:
        while True:
            name, result = ours.recv()
            if not name:
                peak_kib = result
                break
            found[name] = result
    except EOFError:
        process.join()
        died = f"its process died, exit code {process.exitcode}"
        found |= {case.name: {"error": died} for case in cases if case.name not in found}
    process.join()
    return found, {"peak_kib": peak_kib, "seconds": round(time.monotonic() - began_s, 1)}


def run_all(cases: Sequence[Case], jobs: int, say: Callable[[str], None]) -> Result:
    """Run all cases, as many groups at once as there are jobs."""
    groups: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    results, notes = dict[str, Result](), dict[str, Result]()
    with ThreadPoolExecutor(jobs) as pool:
        largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
        waiting = {pool.submit(run_group, members): name for name, members in largest_first}
        for done in as_completed(waiting):
            found, note = done.result()
            results |= found
            notes[waiting[done]] = {"cases": len(found), **note}
            say(f"{waiting[done]:32} {len(found):4} cases {note['seconds']:7.1f} s")
    ordered = {case.name: results[case.name] for case in cases}
    return {"about": _about(), "groups": dict(sorted(notes.items())), "cases": ordered}


def _about() -> Result:
    import dystop

    return {
        "dystop": dystop.__version__,
        "source": str(Path(dystop.__file__).parent),
        "python": platform.python_version(),
        "machine": platform.platform(),
    }


# Promises and comparisons -------------------------------------------------------------------------

TWINS = {
    "/plain": "/ahead", "/numpy": "", "/stopped": "/whole", "/killed": "/whole",
    **{f"/{crash}": "/whole" for crash in CRASHES},
}  # fmt: skip
PROMISED = ("records", "models", "refused")


def broken_promises(cases: dict[str, Result]) -> list[str]:
    """Say which cases differ from the twin that dystop promises to be equal."""
    broken = []
    for name, result in cases.items():
        for end, other in TWINS.items():
            twin = name.removesuffix(end) + other
            if not name.endswith(end) or twin not in cases:
                continue
            if differences := _differences(cases[twin], result, PROMISED):
                broken.append(f"{name} is not {twin}: {differences}")
    return broken


def _differences(old: Result, new: Result, keys: Iterable[str]) -> str:
    """Say what differs between two results; of records, the fields."""
    parts = []
    for key in keys:
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if key == "records" and before and after:
            one, two = old["fields"], new["fields"]
            names = sorted(n for n in one | two if one.get(n) != two.get(n))
            parts.append(f"records in {', '.join(names)}")
        elif key in ("records", "models", "traffic"):
            parts.append(key)
        else:
            parts.append(f"{key} {before} -> {after}")
    return "; ".join(parts)


def compare(old: Result, new: Result) -> list[str]:
    """Say which cases of two frozen trees differ, and which groups take more memory."""
    lines = []
    before, after = old["cases"], new["cases"]
    patterns = old["only"] + new["only"]
    for name in sorted(before | after):
        if not (name in before and name in after):
            if not patterns and name in before:
                lines.append(f"{name}: missing")
            continue
        keys = sorted(
            (before[name] | after[name]).keys() - {"fields", "text", "kernels", "seconds"}
        )
        if differences := _differences(before[name], after[name], keys):
            lines.append(f"{name}: {differences}")
    for name in sorted(old["groups"].keys() & new["groups"].keys()):
        one, two = old["groups"][name], new["groups"][name]
        is_larger = two["peak_kib"] > MORE_MEMORY * one["peak_kib"]
        if is_larger and one["cases"] == two["cases"]:
            mib = f"{one['peak_kib'] / 1024:.0f} -> {two['peak_kib'] / 1024:.0f} MiB"
            lines.append(f"group {name}: peak memory {mib}")
    return lines


def summary(frozen: Result) -> Iterator[str]:
    """Yield lines about what was frozen, what is refused, and what is wrong."""
    cases = frozen["cases"]
    refused = Counter(r["refused"] for r in cases.values() if "refused" in r)
    seconds = sum(group["seconds"] for group in frozen["groups"].values())
    yield f"{len(cases)} cases in {len(frozen['groups'])} groups, {seconds:.0f} s of processes"
    for name, count in sorted(refused.items()):
        yield f"{count} cases are refused: {name}"
    for line in frozen["broken"]:
        yield f"BROKEN PROMISE {line}"
    for name, result in cases.items():
        if "error" in result:
            yield f"ERROR {name}\n{result['error']}"


def main(words: Sequence[str] | None = None) -> int:
    """Run or compare; return the exit code."""
    parser = argparse.ArgumentParser(description="freeze what runs do across a refactoring")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the cases and write what they did")
    run.add_argument("out", type=Path)
    run.add_argument("--only", action="append", default=[], help="part of a name, or a pattern")
    run.add_argument("--jobs", type=int, default=2, help="processes at once")
    run.add_argument("--paper-scale", action="store_true", help="100 workers and a CNN, too")
    run.add_argument("--gpu", action="store_true", help="and on a GPU, with its back ends")
    run.add_argument("--list", action="store_true", help="only show the names")
    both = commands.add_parser("compare", help="say what differs between two outputs")
    both.add_argument("old", type=Path)
    both.add_argument("new", type=Path)
    options = parser.parse_args(words)
    if options.command == "compare":
        lines = compare(json.loads(options.old.read_text()), json.loads(options.new.read_text()))
        click.echo("\n".join(lines) or "nothing differs")
        return int(bool(lines))
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    cases = list(all_cases(paper_scale=options.paper_scale, gpu=options.gpu))
    if options.only:
        cases = [c for c in cases if any(_fits(c.name, pattern) for pattern in options.only)]
    if options.list or not cases:
        click.echo("\n".join(case.name for case in cases) or "no case has such a name")
        return 0 if cases else 2
    frozen = run_all(cases, max(1, options.jobs), click.echo)
    frozen |= {"only": options.only, "broken": broken_promises(frozen["cases"])}
    options.out.write_text(json.dumps(frozen, indent=1) + "\n")
    click.echo("\n".join(summary(frozen)))
    if any("error" in result for result in frozen["cases"].values()):
        return 2
    return int(bool(frozen["broken"]))


def _fits(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatch(name, pattern)


if __name__ == "__main__":
    sys.exit(main())
