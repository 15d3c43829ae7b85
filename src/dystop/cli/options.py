"""Options and arguments that several commands share."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.terminal import complain

if TYPE_CHECKING:
    from dystop.registry import Registry

REGISTRIES = {
    "mechanisms": "dystop.mechanisms:MECHANISMS",
    "models": "dystop.training.models.catalogue:MODELS",
    "tasks": "dystop.training.tasks.catalogue:TASKS",
    "datasets": "dystop.data.catalogue:DATASETS",
    "laws": "dystop.control.laws:LAWS",
    "codecs": "dystop.exchange.codecs:CODECS",
    "rules": "dystop.exchange.rules:RULES",
    "attacks": "dystop.exchange.attacks:ATTACKS",
    "transports": "dystop.testbed.params:TRANSPORTS",
}
"""The kinds of parts that have names, and where they are; imported when they are asked for."""


def registry_of(kind: str) -> "Registry[Any]":
    """Return the registry of a kind of parts, such as "laws"."""
    module, _, name = REGISTRIES[kind].partition(":")
    found: Registry[Any] = getattr(import_module(module), name)
    return found


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return the completion of an option whose value is the name of a part."""
    return lambda incomplete: [n for n in registry_of(kind) if n.startswith(incomplete)]


def name_left_out(kind: str) -> None:
    """Warn of plug-ins that cannot be used, where all parts of a kind are asked for."""
    for problem in registry_of(kind).problems().values():
        complain(f"left out: {problem}", colour="yellow")


Words = Annotated[
    list[str] | None, typer.Argument(metavar="FILE.toml|KEY=VALUE", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Report = Annotated[bool, typer.Option(help="Write an HTML report into the run folder at the end.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as in runs/NAME.")]
Out = Annotated[Path, typer.Option(help="Folder of all runs.")]
RunName = Annotated[str | None, typer.Option(help="Name of this run; must be free.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import code that the run folder of somebody else names."),
]
"""A command declares it; `handle_errors` lets it hold until the command ends."""
StudyName = Annotated[
    str | None, typer.Option(help="Name of the study; an existing study of this name is resumed.")
]
Target = Annotated[
    float | None, typer.Option(help="Accuracy whose time and cost are compared, up to 1.")
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, metavar="J", help="Runs at the same time. [default: one per GPU, or 1]"),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ENGINE",
        help="Where the runs run: local (processes of this machine), slurm or ray. "
        "Keys such as slurm.partition=gpu set what a cluster is asked for.",
    ),
]
MechanismSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="MECHANISM.KEY=VALUE", help="A key of one mechanism; repeatable."
    ),
]


def split_words(words: list[str]) -> tuple[Path | None, list[str]]:
    """Split into a file and `key=value` words; the first word is a file unless it sets a key.

    `example:NAME` is the file of an example that comes with dystop.
    """
    from dystop.runs.examples import PREFIX, configuration_of

    if words and words[0].startswith(PREFIX):
        return configuration_of(words[0].removeprefix(PREFIX)), words[1:]
    if words and ("=" not in words[0] or words[0].endswith(".toml")):
        return Path(words[0]), words[1:]
    return None, words


def split_names(text: str) -> list[str]:
    """Return the names of a list with commas.

    >>> split_names("dystop, matcha,")
    ['dystop', 'matcha']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def check_target(target: float | None) -> None:
    """Refuse a target that is not an accuracy."""
    from dystop.errors import ConfigError

    if target is not None and not 0.0 < target <= 1.0:
        raise ConfigError(
            f"command line: --target {target}; expected a share above 0 and at most 1, as in 0.8"
        )
