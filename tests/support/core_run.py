"""Runs mechanisms with nothing but the core: `python core_run.py MECHANISM...` prints records.

Every other module of the product, and every library that only those use, is refused at import. A
line of JSON per mechanism holds the records of its run.
"""

import json
import sys
from typing import Any

CORE = frozenset(
    {
        "acceleration", "carried", "control", "data", "errors", "exchange", "foreign_files",
        "format", "mechanisms", "model_state", "parallel", "params", "plan", "record", "recorders",
        "registry", "rng", "sealed", "serialization", "simulator", "sparse", "storage",
        "strict_json", "training", "types", "units", "user_code", "world",
    }
)  # fmt: skip
FAST_BACKENDS = ("dystop.training.backends.cpu", "dystop.training.backends.cuda")
LIBRARIES = frozenset(
    {
        "cryptography", "grpc", "matplotlib", "mpi4py", "numba", "pydantic", "rich", "sqlite3",
        "triton", "typer",
    }
)  # fmt: skip
WORKERS, ROUNDS, SEED = 60, 12, 3
TRAIN, TEST = 1200, 100


class Blocker:
    """Refuses the import of everything around the core."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        top, *rest = name.split(".")
        around = top in LIBRARIES or name.startswith(FAST_BACKENDS)
        if around or (top == "dystop" and rest and rest[0] not in CORE):
            raise ModuleNotFoundError(f"{name} is not part of the core", name=name)


def records_of(name: str) -> list[dict[str, Any]]:
    """Build a simulation from parts of the core, and run it to its end."""
    from dystop.control.stopping import Evaluate, Stop
    from dystop.data.generated.images import SyntheticImages, make_synthetic
    from dystop.data.partition import PartitionParams, label_counts, partition
    from dystop.mechanisms import MECHANISMS
    from dystop.recorders.failed_trainings import FailedTrainingsRecorder
    from dystop.recorders.time_spent import TimeSpentRecorder
    from dystop.recorders.topology import TopologyRecorder
    from dystop.simulator import run_rounds
    from dystop.simulator.params import EngineParams
    from dystop.simulator.round import begin
    from dystop.simulator.state import Components
    from dystop.training.models.build import build_model
    from dystop.training.params import TrainerParams
    from dystop.training.samples import Arrays
    from dystop.training.trainer import Trainer
    from dystop.types import Fleet
    from dystop.world import World, WorldParams

    mechanism = MECHANISMS[name]()
    data = make_synthetic(SyntheticImages(train=TRAIN, test=TEST), SEED)
    shards = partition(data.y_train, WORKERS, PartitionParams("dirichlet", phi=0.5), SEED)
    counts = label_counts(data.y_train, shards, data.classes)
    _, channels, height, width = data.x_train.shape
    module = build_model("softmax", channels, (height, width), data.classes, SEED)
    arrays = Arrays(data.x_train, data.y_train, data.x_test, data.y_test, data.mean, data.std)
    params = TrainerParams(path="sequential", device="cpu")
    trainer = Trainer(module, arrays, shards, params, SEED)
    fleet = Fleet(
        data_size=counts.sum(axis=1),
        label_counts=counts,
        batch=params.batch,
        model_bytes=4 * trainer.width,
        horizon=ROUNDS,
        seed=SEED,
    )
    components = Components(
        fleet=fleet,
        mechanism=mechanism,
        world=World(WorldParams(), WORKERS, fleet.model_bytes, SEED),
        trainer=trainer,
        engine=EngineParams(),
        stop=Stop(rounds=ROUNDS),
        evaluate=Evaluate(every_rounds=ROUNDS),
        steps=fleet.epoch_steps,
        recorders=(TimeSpentRecorder(), TopologyRecorder(), FailedTrainingsRecorder()),
    )
    return [json.loads(record.to_json()) for record, _ in run_rounds(components, begin(components))]


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    for mechanism in sys.argv[1:]:
        print(json.dumps(records_of(mechanism)))
