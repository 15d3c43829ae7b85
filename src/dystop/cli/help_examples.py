"""The examples at the end of every `--help`."""

from collections.abc import Sequence

_EXAMPLES = {
    "": (
        "dystop run                                   one experiment, with the defaults",
        "dystop list keys                             everything that can be set",
        "dystop run mechanism.V=20 stop.rounds=100    set some of it",
        "dystop compare --mechanisms dystop,fedavg    several mechanisms, one report",
        "dystop sweep --over mechanism.V=1,10,50      one experiment over some values",
        "dystop report runs/*                         one report of what was run",
    ),
    "run": (
        "dystop run",
        "dystop run mechanism.V=20 world.range_m=60 stop.rounds=100",
        "dystop run experiment.toml seed=3 --name third",
        "dystop run mechanism.name=fedavg fleet.workers=10 --no-report",
        "dystop run trace=runs/trial                  play back a run of the testbed",
    ),
    "compare": (
        "dystop compare --mechanisms dystop,d-psgd,fedavg --seeds 3",
        "dystop compare --mechanisms dystop,d-psgd stop.seconds=60 stop.rounds=9999",
        "dystop compare experiment.toml --mechanisms all --timing both --target 0.8 --name trial",
        "dystop compare --mechanisms dystop,d-psgd --set dystop.V=20 --jobs 4",
        "dystop compare runs/trial                    resume, or write the report again",
    ),
    "sweep": (
        "dystop sweep --over mechanism.V=1,10,50,100 --seeds 3",
        "dystop sweep --over mechanism.name=dystop,matcha --over data.phi=1.0,0.7,0.4",
        "dystop sweep experiment.toml stop.accuracy=0.7 --over world.range_m=30,60 --jobs 4",
        "dystop sweep runs/sweep-V                    resume, or write the report again",
    ),
    "advise": (
        "dystop advise                                the default fleet, all mechanisms",
        "dystop advise fleet.toml --goal traffic",
        "dystop advise fleet.toml world.range_m=60 --mechanisms dystop,matcha,ad-psgd --jobs 2",
        "dystop advise fleet.toml --seconds 60 --seeds 5 --name longer",
    ),
    "resume": ("dystop resume runs/dystop-fmnist-mini-s0",),
    "verify": (
        "dystop verify runs/dystop-fmnist-mini-s0",
        "dystop verify runs/dystop-fmnist-mini-s0 --rounds 5",
    ),
    "report": (
        "dystop report runs/dystop-fmnist-mini-s0",
        "dystop report runs/dystop-* runs/fedavg-* --target 0.8 --out comparison",
        "dystop report runs/sweep-V --out page        a comparison or a sweep, as far as it got",
    ),
    "plot": (
        "dystop plot runs/trial                              accuracy over time, one column wide",
        "dystop plot runs/trial --figure time-to-target --target 0.8 --out bars.pdf",
        "dystop plot runs/trial --mechanisms dystop,matcha --label dystop='DySTop (ours)'",
        "dystop plot runs/by-phi --panels data.phi --width page --columns 3 --out phi.pgf",
        "dystop plot runs/trial --figure time-shares --out why.svg --out why.pdf",
        "dystop plot runs/a runs/b --style ieee.mplstyle --font 7 --ylim 0.4,0.9 --legend inside",
    ),
    "animate": (
        "dystop animate runs/dystop-fmnist-mini-s0",
        "dystop animate runs/trial --rounds 100 --seconds 30 --out trial.svg",
    ),
    "export": (
        "dystop export runs/trial --to parquet               tables in runs/trial/export",
        "dystop export runs/trial --to csv --out tables      a run, a comparison or a sweep",
        "dystop export runs/trial --to tensorboard --follow  while it runs, also on a testbed",
        "WANDB_MODE=offline dystop export runs/trial --to wandb",
    ),
    "dashboard": (
        "dystop dashboard                             all runs under runs/",
        "dystop dashboard runs/trial                  one run, or one comparison",
        "dystop dashboard --port 0 --open             any free port, in the browser",
        "dystop dashboard --host 192.168.1.2 --token-file token --cert host.crt --key host.key",
    ),
    "list": (
        "dystop list mechanisms",
        "dystop list mechanisms dystop                one of them, with its keys",
        "dystop list keys                             everything that can be set",
        "dystop list keys world.channel               the keys of a section",
        "dystop list mechanisms --json                for other programs",
    ),
    "examples": (
        "dystop examples                              all of them, with one sentence each",
        "dystop examples quickstart                   a copy, as examples/quickstart.toml",
        "dystop examples lora text --to trial         two of them, into a folder",
        "dystop run example:quickstart                without a copy",
    ),
    "new": ("dystop new mechanism my-idea", "dystop new mechanism my-idea --out ~/work"),
    "doctor": ("dystop doctor",),
    "testbed": (
        "dystop testbed fleet.workers=3 stop.rounds=5",
        "dystop testbed experiment.toml testbed.time_scale=0.1 --name trial",
        "dystop testbed fleet.workers=15 testbed.devices=jetson",
        "dystop testbed --transport memory fleet.workers=4",
        "dystop testbed --resume runs/trial",
    ),
    "coordinator": (
        "dystop coordinator experiment.toml --pki pki --listen 192.168.1.2:7000 --out runs/lab",
        "dystop coordinator experiment.toml --listen 192.168.1.2:7000 --enrol 192.168.1.2:7002",
    ),
    "worker": (
        "dystop worker experiment.toml --name w03 --pki pki --coordinator 192.168.1.2:7000 "
        "--listen 192.168.1.13:7001 --folder w03",
        "dystop worker experiment.toml --name w03 --coordinator 192.168.1.2:7000 --data own.npz",
    ),
    "data": (
        "dystop data import photos photos.npz --size 32x32         a sub-folder for each class",
        "dystop data import heart.csv heart.npz --target sick --group hospital",
        "dystop data partition fleet.workers=10 --out split.csv    which worker has which sample",
        "dystop data partition runs/trial --out split.parquet      the same of a run",
        "dystop data describe own.npz --classes 10 > w00.json      on each worker's host",
        "dystop data enrol w00.json w01.json w02.json              on the operator's",
    ),
    "observer": ("dystop observer experiment.toml --pki pki --coordinator 192.168.1.2:7000",),
    "health": (
        "dystop worker experiment.toml --name w03 ... --health /run/dystop/w03.json",
        "dystop health /run/dystop/w03.json           0 if healthy; otherwise 2, and why",
        "dystop health --alive /run/dystop/w03.json   should it be restarted?",
    ),
    "check": ("dystop check runs/trial",),
    "pardon": ("dystop pardon runs/trial w03",),
    "restore": ("dystop restore runs/trial",),
    "pki": (
        "dystop pki init",
        "dystop pki issue coordinator",
        "dystop pki issue w00",
        "dystop pki revoke w03",
        "dystop pki token w04 --out w04.token",
        "dystop pki tokens experiment.toml --out tokens   one for each party",
        "dystop pki join w04 --token-file w04.token --ca ca.crt --from 192.168.1.2:7002",
        "dystop pki list",
    ),
    "gap": (
        "dystop gap runs/trial",
        "dystop gap runs/trial --json gap.json",
        "dystop gap runs/trial --no-train                 times and plans only: quick",
        "dystop gap runs/trial --no-train --timing paper  under the law of the paper",
    ),
}


def help_examples(command: str) -> str:
    """Return the examples of a built-in command."""
    return examples_at_end(_EXAMPLES[command])


def examples_at_end(examples: Sequence[str]) -> str:
    """Return the end of a help text; the mark in front keeps typer from joining the lines."""
    lines = "\n".join(f"  {line}" for line in examples)
    return f"\b\nExamples:\n{lines}\n\n"
