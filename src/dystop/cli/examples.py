"""The examples that `--help` teaches with."""

_EXAMPLES = {
    "": (
        "dystop run                                   one experiment, with the defaults",
        "dystop list keys                             everything that can be set",
        "dystop run mechanism.V=20 stop.rounds=100    set some of it",
        "dystop compare --mechanisms dystop,fedavg    several mechanisms, one report",
        "dystop report runs/*                         one report of what was run",
    ),
    "run": (
        "dystop run",
        "dystop run mechanism.V=20 world.range_m=60 stop.rounds=100",
        "dystop run experiment.toml seed=3 --name third",
        "dystop run mechanism.name=fedavg fleet.workers=10 --no-report",
    ),
    "compare": (
        "dystop compare --mechanisms dystop,d-psgd,fedavg --seeds 3",
        "dystop compare --mechanisms dystop,d-psgd stop.seconds=60 stop.rounds=9999",
        "dystop compare experiment.toml --mechanisms all --timing both --target 0.8 --name trial",
        "dystop compare --mechanisms dystop,d-psgd --set dystop.V=20 --jobs 4",
        "dystop compare runs/trial                    go on, or write the report again",
    ),
    "resume": ("dystop resume runs/dystop-fmnist-mini-s0",),
    "verify": (
        "dystop verify runs/dystop-fmnist-mini-s0",
        "dystop verify runs/dystop-fmnist-mini-s0 --rounds 5",
    ),
    "report": (
        "dystop report runs/dystop-fmnist-mini-s0",
        "dystop report runs/dystop-* runs/fedavg-* --target 0.8 --out comparison",
    ),
    "list": (
        "dystop list mechanisms",
        "dystop list mechanisms --describe dystop",
        "dystop list keys",
    ),
    "new": ("dystop new mechanism my-idea", "dystop new mechanism my-idea --out ~/work"),
    "doctor": ("dystop doctor",),
    "bench": (
        "dystop bench --quick",
        "dystop bench trainer --model cnn --workers 30 --repeat 5",
        "dystop bench trainer --model resnet18 --device cuda",
        "dystop bench trainer --set training.path=sequential",
        "dystop bench --json bench.json --plot figures",
        "dystop bench planner --full                  up to a million workers",
    ),
}


def examples(command: str) -> str:
    """Examples of one command; the mark in front keeps the lines from being wrapped together."""
    lines = "\n".join(f"  {line}" for line in _EXAMPLES[command])
    return f"\b\nExamples:\n{lines}\n\n"
