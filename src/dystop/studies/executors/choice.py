"""The engine that `--on` names, with the settings that its keys give it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError, TrustError, nearest
from dystop.folders.folder_kinds import writing
from dystop.folders.trust import SIGNATURE, TRUST, is_proof, proof_of, trusts
from dystop.storage import try_read_json, write_atomic
from dystop.studies.executors.executor import Executor

REMEMBERED = "executors.json"
"""The file of a study that holds the settings of the engines that it ran on."""


@dataclass(frozen=True)
class Choice:
    """An engine as the command line chooses it."""

    on: str = "local"  # NAME, or NAME:ADDRESS
    jobs: int | None = None  # runs at the same time; None: the engine chooses
    settings: Mapping[str, Any] = field(default_factory=dict)  # the table of this engine

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.on.partition(":")[0]

    @property
    def address(self) -> str:
        """What follows the colon in `--on`; empty without one."""
        return self.on.partition(":")[2]


def _local(choice: Choice) -> Executor:
    from dystop.studies.executors.local import LocalExecutor, gpus_here

    return LocalExecutor(choice.jobs, [] if choice.jobs == 1 else gpus_here())


def _slurm(choice: Choice) -> Executor:
    from dystop.studies.executors.slurm import make_slurm

    return make_slurm(choice)


def _ray(choice: Choice) -> Executor:
    from dystop.studies.executors.ray_tasks import make_ray

    return make_ray(choice)


EXECUTORS: dict[str, Callable[[Choice], Executor]] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
}
"""Makes the executor of a choice, by the name of the engine."""


def choose(
    on: str,
    jobs: int | None,
    file: Path | None = None,
    words: Sequence[str] = (),
    study: Path | None = None,
) -> Choice:
    """Return the choice that the command line makes.

    Args:
        on: The value of `--on`.
        jobs: The value of `--jobs`.
        file: A configuration file, which may hold the table of the engine.
        words: Words that set keys of the engine, as in slurm.partition=gpu.
        study: A study that is resumed: the settings of its last driver are the defaults.

    Raises:
        TrustError: They are somebody else's: settings of an engine hold shell lines and addresses.
    """
    from dystop.config.read import executor_table

    name = Choice(on).name
    remembered = {} if study is None else _remembered(study / REMEMBERED, name)
    return Choice(on, jobs, {**remembered, **executor_table(name, file, words)})


def _remembered(file: Path, name: str) -> dict[str, Any]:
    """Return the settings of an engine that the last driver of a study has left."""
    tree = try_read_json(file)
    proof, table = tree.pop(SIGNATURE, ""), tree.get(name)
    if not isinstance(table, dict) or not table:
        return {}
    if trusts() or is_proof(_signed_part(tree), proof):
        return table
    raise TrustError(
        f"{file}: settings of {name}, which may run commands, and nothing shows that you wrote "
        f"them on this machine. Read them. Repeat the command with {TRUST}, or remove the file "
        f"and give the settings again, as in {name}.KEY=VALUE"
    )


def _signed_part(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True).encode()


def remember(study: Path, choice: Choice) -> None:
    """Keep the settings of an engine with the study, for the command that resumes it."""
    known = try_read_json(study / REMEMBERED)
    proof = known.pop(SIGNATURE, "")
    is_own = is_proof(_signed_part(known), proof)
    if choice.settings and (not is_own or known.get(choice.name) != choice.settings):
        content: dict[str, Any] = {**(known if is_own else {}), choice.name: dict(choice.settings)}
        content |= proof_of(_signed_part(content))
        with writing(study):
            write_atomic(study / REMEMBERED, (json.dumps(content, indent=2) + "\n").encode())


def make_executor(choice: Choice) -> Executor:
    """Return the executor that `--on` names.

    Raises:
        ConfigError: There is no such executor.
        DystopError: It cannot be used here; says what is missing.
    """
    if choice.name not in EXECUTORS:
        known = ", ".join(EXECUTORS)
        close = nearest(choice.name, EXECUTORS)
        raise ConfigError(f"command line: --on {choice.on}; expected one of {known}{close}")
    return EXECUTORS[choice.name](choice)
