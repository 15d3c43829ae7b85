"""A worker of `peer_flower.py`: a module of its own, so that Ray's actors import it by name."""

from pathlib import Path

import torch
from child import Work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from nets import cnn, tensors
from torch.nn import functional as F

app = ClientApp()


def train_epoch(net, shard, work: Work) -> float:
    """One local epoch as in Flower's PyTorch tutorial; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=work.learning_rate)
    x, y = shard
    total = torch.zeros(())
    for batch in torch.randperm(len(y)).split(work.batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)
    return total.item() / len(y)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Load the global model, train one epoch, send it back."""
    torch.set_num_threads(1)
    config = message.content["config"]
    work = Work(
        Path(config["data"]), config["workers"], 1, config["batch"], config["learning-rate"]
    )
    shard = tensors(work)[context.node_config["partition-id"]]
    net = cnn()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train_epoch(net, shard, work)
    metrics = MetricRecord({"loss": loss, "num-examples": len(shard[1])})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)
