"""pfl-research: FedAvg on its simulated back end, two processes under torchrun."""

import os
import sys

import torch
from child import Report, Work, read_work
from nets import cnn, loss_of, tensors
from torch.nn import functional as F

PROCESSES = 2


class Net(torch.nn.Module):
    """The CNN with the two methods that pfl asks for; counts the images it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.images = cnn(), 0

    def loss(self, x, y):
        """What a local step minimizes."""
        self.images += len(y)
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x, y):
        """What an evaluation would report; there is none in this work but in the first round."""
        from pfl.metrics import Weighted

        return {"loss": Weighted(F.cross_entropy(self.net(x), y).item() * len(y), len(y))}


def backend(work: Work):
    """All workers' data, dealt to the processes in turn."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    users = [Dataset(shard, user_id=str(k)) for k, shard in enumerate(tensors(work))]
    sampler = get_user_sampler("minimize_reuse", range(work.workers))
    data = FederatedDataset(lambda k: users[k], sampler)
    return SimulatedBackend(training_data=data, val_data=data)


def stamps(report: Report, net: Net):
    """A callback that notes the end of each round, with the images of all processes."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Stamps(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            images = torch.tensor(net.images)
            torch.distributed.all_reduce(images)
            report.round_ended(int(images))
            net.images = 0
            return False, Metrics()

    return Stamps()


def run(work: Work) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    net, report = Net(), Report(work)
    central = torch.optim.SGD(net.parameters(), lr=1.0)  # the average replaces the model
    model = PyTorchModel(net, torch.optim.SGD, central)
    data = backend(work)
    for parameter in net.parameters():  # the same start everywhere
        torch.distributed.broadcast(parameter.data, 0)
    first = loss_of(net.net, work)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.total_rounds,
            evaluation_frequency=10 * work.total_rounds,
            train_cohort_size=work.workers,
            val_cohort_size=0,
        ),
        backend=data,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.learning_rate, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[stamps(report, net)],
    )
    if int(os.environ["RANK"]) == 0:
        last = loss_of(net.net, work)
        report.send("pfl", f"FedAvg, {PROCESSES} processes (torchrun) x 1 thread", (first, last))


def main() -> None:
    """Become torchrun, unless this already is one of its processes."""
    if "RANK" in os.environ:
        run(read_work())
        return
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])


if __name__ == "__main__":
    main()
