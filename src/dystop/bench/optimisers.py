"""Benchmarks of optimisers against plain SGD, over whole rounds in the same run."""

from collections.abc import Callable, Iterator

from dystop.bench.result import Line
from dystop.bench.settings import Settings
from dystop.bench.timing import in_turns
from dystop.bench.training import Rounds

_OPTIMISERS = {
    "momentum 0.9": ("training.momentum=0.9",),
    "momentum 0.9, weight decay, kept": (
        "training.momentum=0.9",
        "training.weight_decay=5e-4",
        "training.optimizer_state=kept",
    ),
    "AdamW": ("training.optimizer=adamw", "training.weight_decay=0.01"),
    "crop and flip": ("training.augment.crop=4", "training.augment.flip=true"),
}


def optimiser_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Measure images per second with each optimiser beside plain SGD.

    Where an optimiser is trained on another path than plain SGD would be, plain SGD is measured on
    that path, too.
    """
    model = settings.models[0]
    work = settings.work(model)
    say(f"{work.describe()}: warm-up of plain SGD and {len(_OPTIMISERS)} others")
    plain = Rounds(settings, work)
    others = {name: Rounds(settings, work, *words) for name, words in _OPTIMISERS.items()}
    paths = {name: rounds.components.trainer.path for name, rounds in others.items()}
    references = {plain.components.trainer.path: plain}
    for path in sorted(set(paths.values()) - references.keys()):
        references[path] = Rounds(settings, work, f"training.path={path}")
    say(f"{work.describe()}: whole rounds in turns")
    measured = [*references.values(), *others.values()]
    meters = [rounds.meter(settings.scale.at_least_s) for rounds in measured]
    spreads = dict(zip((*references, *others), in_turns(meters, settings.repeat), strict=True))
    for name, rounds in others.items():
        for path in dict.fromkeys((plain.components.trainer.path, paths[name])):
            yield Line(
                what="optimisers",
                name=f"{work.describe()}, {name} ({paths[name]})",
                unit="images/s",
                value=spreads[name],
                reference=f"plain SGD ({path})",
                reference_value=spreads[path],
                better="higher",
                warmup_s=rounds.warmup_s,
                detail={"words": list(_OPTIMISERS[name])},
            )
