"""Trained models: save them in the run folder at the end of a run, and load them again."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from dystop.errors import RunFolderError
from dystop.folders.run_folder import GLOBAL, MODELS, run_folder, write_atomic, writing
from dystop.foreign_files import folder_within, refuse_links
from dystop.simulator.evaluation import EvaluationModels, batch_norm_owners, evaluation_models
from dystop.simulator.state import Components, State
from dystop.sparse import ints
from dystop.training.batch_norm import ALL_WORKERS
from dystop.training.models.build import CustomModel
from dystop.training.saved import LoadedModel, ModelCard, loaded_model, read_model, to_bytes

Which = Literal["none", "global", "all"]


def worker_file(worker: int) -> str:
    """Return the name of the file of one worker's model.

    >>> worker_file(7)
    'worker-007.safetensors'
    """
    return f"worker-{worker:03d}.safetensors"


def keep_models(
    folder: Path, components: Components, state: State, card: ModelCard, which: Which
) -> None:
    """Save the final models of a run in its folder."""
    if which == "none":
        return
    now = evaluation_models(components, state)
    files = {GLOBAL: ALL_WORKERS}
    if which == "all":
        files |= {worker_file(k): k for k in range(len(now.models))}
    with writing(folder), folder_within(folder, MODELS, create=True) as inside:
        for name, who in files.items():
            blob = to_bytes(components.trainer.layout, *_as_evaluated(components, now, who), card)
            write_atomic(inside / name, blob)


def _as_evaluated(components: Components, now: EvaluationModels, who: int) -> tuple[Tensor, Tensor]:
    """Return a model [W] and its counters [C], with the batch-norm statistics of an evaluation."""
    vector = now.global_model if who == ALL_WORKERS else now.models[who]
    counters = now.counters[max(0, who)]
    fit = batch_norm_owners(components, ints([who]))
    if fit is not None:
        vector = components.trainer.recalibrated(vector[None], counters[None], fit)[0]
    return vector, counters


def loaded_models(
    components: Components, state: State, card: ModelCard, custom: CustomModel | None = None
) -> Callable[[int | None], LoadedModel]:
    """Return a function that loads the current global model (None), or that of one worker."""
    found: list[EvaluationModels] = []  # computed at the first call

    def load(worker: int | None) -> LoadedModel:
        now = found[0] if found else evaluation_models(components, state)
        found[:] = [now]
        if worker is not None and not 0 <= worker < len(now.models):
            raise IndexError(f"worker = {worker}; expected 0 to {len(now.models) - 1}")
        model = _as_evaluated(components, now, ALL_WORKERS if worker is None else worker)
        return loaded_model(components.trainer.layout, *model, card, custom)

    return load


def load_model(
    run: str | Path, worker: int | None = None, *, module: nn.Module | None = None
) -> LoadedModel:
    """Load a trained model of a run.

    Args:
        run: Folder of the run, or one of the files in its `models` folder.
        worker: The worker whose model to load; None loads the global model. Only a run with
            `output.models=all` has models of single workers.
        module: For a custom model, a module of the same kind; its weights are replaced.
    """
    path = Path(run)
    if not path.is_file():
        path = _file(run_folder(path), worker)
    elif worker is not None:
        raise RunFolderError(
            f"{path}: the file of one model; leave out worker = {worker}, or give the run folder"
        )
    return read_model(path, module)


def _file(folder: Path, worker: int | None) -> Path:
    name = GLOBAL if worker is None else worker_file(worker)
    path = folder / MODELS / name
    with suppress(FileNotFoundError), folder_within(folder, MODELS):  # it is no link itself
        refuse_links(folder / MODELS)
        if path.is_file():
            return path
    there = sorted(p.name for p in (folder / MODELS).glob("*.safetensors"))
    raise RunFolderError(
        f"{path}: no such model; {_listed(there)}. A run saves its models at its end; "
        "output.models chooses which: none, global or all"
    )


def _listed(there: list[str]) -> str:
    if not there:
        return "the folder has no models"
    some = there if len(there) <= 4 else [*there[:3], f"and {len(there) - 3} more"]
    return f"there are: {', '.join(some)}"
