"""A Flower ClientApp that fits a line; see docs/tutorial/own-model-and-data.md."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def samples(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of this node: each node sees another part of the same line."""
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    x = np.linspace(node, node + 1, 20) / nodes
    return x, 3.0 * x - 1.0


@app.query()
def initial(message: Message, context: Context) -> Message:
    """Return the arrays with which everybody begins."""
    arrays = ArrayRecord([np.zeros(2, np.float32)])
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take some gradient steps on the own points."""
    weights = message.content["arrays"].to_numpy_ndarrays()[0].copy()
    x, y = samples(context)
    for _ in range(20):
        error = weights[0] * x + weights[1] - y
        weights -= message.content["config"]["lr"] * np.array([error @ x, error.sum()]) / len(x)
    arrays = ArrayRecord([weights.astype(np.float32)])
    metrics = MetricRecord({"train_loss": float(np.mean(error**2)), "num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Say how far the line is from the points of this node."""
    slope, offset = message.content["arrays"].to_numpy_ndarrays()[0]
    x, y = samples(context)
    error = slope * x + offset - y
    right = float(np.mean(np.abs(error) < 0.2))
    loss = float(np.mean(error**2))
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": right, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
