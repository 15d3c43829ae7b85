"""The reference: a plain loop without a framework, two processes with one torch thread each.

Each process trains half of the workers one after another; at the end of a round the models are
averaged through shared memory.
"""

import multiprocessing

import torch
from child import Report, Work, read_work
from nets import cnn, loss_of, tensors
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

PROCESSES = 2


def train_epoch(net, start, shard, work: Work) -> None:
    """One local epoch of plain SGD from the model `start`; the result stays in `net`."""
    parameters = list(net.parameters())
    load(parameters, start)
    order = torch.randperm(len(shard[1]))
    batches = zip(*(part[order].split(work.batch) for part in shard), strict=True)
    for x, y in batches:
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-work.learning_rate)


@torch.no_grad()
def load(parameters, vector) -> None:
    """Copy a flat model into a network; as views of it the network would be slower."""
    for parameter, part in zip(
        parameters, vector.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.copy_(part.view_as(parameter))


def run_half(rank: int, work: Work, model, sums, barrier) -> None:
    """All rounds of every second worker. `model` and `sums` are shared between the processes."""
    torch.set_num_threads(1)
    shards = tensors(work)[rank::PROCESSES]
    net, report = cnn(), Report(work)
    for _ in range(work.total_rounds):
        start = model.clone()
        total, images = torch.zeros_like(start), 0
        for shard in shards:
            train_epoch(net, start, shard, work)
            total += parameters_to_vector(net.parameters()).detach() * len(shard[1])
            images += len(shard[1])
        sums[rank, :-1], sums[rank, -1] = total, images
        barrier.wait()
        if rank == 0:
            trained = int(sums[:, -1].sum())
            model.copy_(sums[:, :-1].sum(0) / trained)
            report.round_ended(trained)
        barrier.wait()
    if rank == 0:
        send(report, work, model)


def send(report: Report, work: Work, model) -> None:
    """Compare a fresh model with the trained one, then report."""
    net = cnn()
    first = loss_of(net, work)
    load(list(net.parameters()), model)
    report.send("torch", "plain loop, 2 processes x 1 thread", (first, loss_of(net, work)))


def main() -> None:
    """Start the second process, be the first."""
    work = read_work()
    model = parameters_to_vector(cnn().parameters()).detach().share_memory_()
    sums = torch.zeros(PROCESSES, len(model) + 1, dtype=torch.float64).share_memory_()
    barrier = multiprocessing.get_context("fork").Barrier(PROCESSES)
    others = [
        multiprocessing.get_context("fork").Process(
            target=run_half, args=(rank, work, model, sums, barrier)
        )
        for rank in range(1, PROCESSES)
    ]
    for other in others:
        other.start()
    run_half(0, work, model, sums, barrier)
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
