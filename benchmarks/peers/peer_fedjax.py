"""FedJAX: federated averaging, compiled; its pmap back end over one device per core."""

# ruff: noqa: E402 - XLA reads its flags when it is imported

import os

DEVICES = 2
# The flag about thunks selects XLA's older CPU runtime, which was the faster one for this work.
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={DEVICES} --xla_cpu_use_thunk_runtime=false"
)

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from child import Report, Work, read_work

# The layout of pmap's results that FedJAX 0.0.17 was written for; JAX has changed it since.
jax.config.update("jax_pmap_no_rank_reduction", False)


def forward(batch):
    """The CNN of 21,840 parameters, with channels last."""
    pool = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    network = hk.Sequential(
        [
            hk.Conv2D(10, 5, padding="VALID"),
            jax.nn.relu,
            pool,
            hk.Conv2D(20, 5, padding="VALID"),
            jax.nn.relu,
            pool,
            hk.Flatten(),
            hk.Linear(50),
            jax.nn.relu,
            hk.Linear(10),
        ]
    )
    return network(batch["x"])


def loss_per_image(batch, scores):
    """Cross-entropy of each image."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["y"][:, None], axis=1)[:, 0]


def clients_of(work: Work) -> list[fedjax.ClientDataset]:
    """All workers' data as FedJAX keeps it."""
    return [
        fedjax.ClientDataset({"x": x.transpose(0, 2, 3, 1), "y": y.astype(np.int32)})
        for x, y in work.shards()
    ]


def averaging(model: fedjax.Model, work: Work) -> fedjax.FederatedAlgorithm:
    """FedAvg; a server step of 1 lets the average replace the model."""
    with fedjax.for_each_client_backend("pmap"):
        return fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            fedjax.optimizers.sgd(work.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch),
        )


def loss_of(model: fedjax.Model, params, clients) -> float:
    """Mean loss on the images of the first workers; outside of the timed rounds."""
    parts = [data.all_examples() for data in clients[:5]]
    batch = {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    return float(loss_per_image(batch, model.apply_for_eval(params, batch)).mean())


def main() -> None:
    """Run the rounds."""
    work = read_work()
    clients, report = clients_of(work), Report(work)
    sample = next(iter(clients[0].batch(batch_size=work.batch)))
    model = fedjax.create_model_from_haiku(hk.transform(forward), sample, loss_per_image)
    algorithm = averaging(model, work)
    key = jax.random.PRNGKey(0)
    state = algorithm.init(model.init(key))
    first = loss_of(model, state.params, clients)
    for _ in range(work.total_rounds):
        key, *keys = jax.random.split(key, work.workers + 1)
        state, trained = algorithm.apply(
            state, list(zip(range(work.workers), clients, keys, strict=True))
        )
        jax.block_until_ready(state.params)
        report.round_ended(sum(len(clients[k]) for k in trained))
    last = loss_of(model, state.params, clients)
    report.send("fedjax", f"FedAvg, pmap over {DEVICES} CPU devices", (first, last))


if __name__ == "__main__":
    main()
