"""Collecting the workers' models after a run of the testbed, and averaging them.

The launcher does this for the folders that it can read. The coordinator never has a model.
"""

from pathlib import Path

import torch

from dystop.config import read_again
from dystop.control.aggregation import global_weights
from dystop.errors import StorageError, shell_command
from dystop.folders.run_folder import GLOBAL, MODELS, open_run, write_atomic
from dystop.folders.trained_models import worker_file
from dystop.foreign_files import MODEL_BYTES, folder_within, read_bounded
from dystop.sparse import ints
from dystop.testbed.setup.enrolment import node_names
from dystop.testbed.setup.launch import WORKERS
from dystop.testbed.setup.parties import MODEL
from dystop.training.saved import average_models


def collect_models(folder: Path) -> bool:
    """Write what `output.models` asks for; False if a worker has left no model."""
    experiment = read_again(folder)
    which, names = experiment.output.models, node_names(experiment)[: experiment.fleet.workers]
    if which == "none":
        return True
    left = [folder / WORKERS / name / MODEL for name in names]
    if not all(path.is_file() for path in left):
        return False
    blobs = [_blob(folder, name) for name in names]
    share = torch.from_numpy(global_weights(ints(open_run(folder).fleet["data_size"])))
    files = {GLOBAL: average_models(blobs, share)}
    if which == "all":
        files |= {worker_file(k): blob for k, blob in enumerate(blobs)}
    try:
        with folder_within(folder, MODELS, create=True) as inside:
            for name, blob in files.items():
                write_atomic(inside / name, blob)
    except OSError as error:
        raise StorageError(
            f"{folder / MODELS}: cannot be written: {error.strerror or error}; the run has "
            f"ended and is safe. Free space, then: {shell_command('testbed', '--resume', folder)}"
        ) from error
    return True


def _blob(folder: Path, name: str) -> bytes:
    """Return the file of one worker's model."""
    with folder_within(folder, WORKERS, name) as inside:
        return read_bounded(inside / MODEL, MODEL_BYTES)
