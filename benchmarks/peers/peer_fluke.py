"""fluke: FedAvg in one process; its parallel mode wants several GPUs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "stand_in"))  # behind a real torchvision

import torch
from child import Report, Work, read_work
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from nets import cnn, loss_of, tensors

THREADS = 2


class CountingLoss(torch.nn.CrossEntropyLoss):
    """The loss; counts the images that went through it."""

    images = 0

    def forward(self, scores, labels):
        """The mean cross-entropy of a batch."""
        CountingLoss.images += len(labels)
        return super().forward(scores, labels)


class Stamps(FederationObserver):
    """Notes the end of each round."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def end_round(self, round: int) -> None:
        """Called by fluke."""
        self.report.round_ended(CountingLoss.images)
        CountingLoss.images = 0


def federation(work: Work, net) -> FedAVG:
    """All workers and the server, with the same data as everybody."""
    loaders = [
        FastDataLoader(*shard, num_labels=10, batch_size=work.batch, shuffle=True)
        for shard in tensors(work)
    ]
    data = DummyDataContainer(loaders, [None] * work.workers, None, num_classes=10)
    settings = DDict(
        client=DDict(
            batch_size=work.batch,
            local_epochs=1,
            loss=CountingLoss,
            optimizer=DDict(lr=work.learning_rate),
            scheduler=DDict(gamma=1, step_size=1),
        ),
        server=DDict(weighted=True),
        model=net,
    )
    return FedAVG(work.workers, DataSplitter(data), settings)


def main() -> None:
    """Run the rounds."""
    work = read_work()
    torch.set_num_threads(THREADS)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=10 * work.total_rounds, n_classes=10))
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    net = cnn()
    first = loss_of(net, work)
    algorithm = federation(work, net)
    report = Report(work)
    algorithm.set_callbacks([Stamps(report)])
    algorithm.run(n_rounds=work.total_rounds, eligible_perc=1.0)
    last = loss_of(algorithm.server.model, work)
    report.send("fluke-fl", f"FedAvg, 1 process x {THREADS} threads", (first, last))


if __name__ == "__main__":
    main()
