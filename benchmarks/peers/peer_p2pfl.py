"""p2pfl: nodes in one process that gossip over memory, training in two Ray actors.

Every node runs several threads and every node gossips with every other one, so the work per round
grows with the square of the nodes; 100 are out of reach. Fewer nodes with as many images each do
the same training per image, and images per second are reported.
"""

# ruff: noqa: E402 - paths and settings must be there before the imports

import os
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE / "stand_in"))  # behind a real torchvision
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{HERE / 'stand_in'}"  # for the actors
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from child import Report, Work, read_work
from p2pfl.settings import Settings

NODES, ACTORS = 10, 2


def tune() -> None:
    """Settings for a simulation: quiet, two actors, gossip that neither waits nor spins."""
    Settings.general.LOG_LEVEL = "ERROR"
    Settings.training.RAY_ACTOR_POOL_SIZE = ACTORS
    Settings.heartbeat.PERIOD, Settings.heartbeat.TIMEOUT = 5.0, 600.0
    Settings.heartbeat.WAIT_CONVERGENCE = 1.0
    Settings.gossip.PERIOD, Settings.gossip.MESSAGES_PER_PERIOD = 0.01, 100_000
    Settings.gossip.AMOUNT_LAST_MESSAGES_SAVED = 10_000
    Settings.gossip.MODELS_PERIOD, Settings.gossip.MODELS_PER_ROUND = 0.05, 4  # seconds
    Settings.gossip.EXIT_ON_X_EQUAL_ROUNDS = 10_000


tune()  # before anything of p2pfl reads them

from datasets import Dataset, DatasetDict, Features, Sequence, Value
from nets import loss_of
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.aggregators.fedavg import FedAvg
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.learning.frameworks.simulation.virtual_learner import VirtualNodeLearner
from p2pfl.management.logger import logger
from p2pfl.node import Node
from p2pfl.utils.utils import wait_convergence, wait_to_finish
from p2pfl_net import Net

# There is no switch for it: every node would be tested in every round.
VirtualNodeLearner.evaluate = lambda self: {}


class Stamps:
    """Notes the end of a round when its last node has finished it."""

    def __init__(self, report: Report, nodes: int) -> None:
        self.report, self.nodes = report, nodes
        self.lock, self.finished, self.images = threading.Lock(), 0, 0

    def aggregator(self) -> FedAvg:
        """A node's FedAvg, which tells how many images are in its average."""
        stamps = self

        class Counting(FedAvg):
            def wait_and_get_aggregation(self, *args, **kwargs):
                model = super().wait_and_get_aggregation(*args, **kwargs)
                stamps.images = model.get_num_samples()
                return model

            def clear(self):
                super().clear()
                stamps.node_finished()

        return Counting()

    def node_finished(self) -> None:
        """One more node is through the round."""
        with self.lock:
            self.finished += 1
            if self.finished % self.nodes == 0:
                self.report.round_ended(self.images)


def data_of(shard, batch: int) -> P2PFLDataset:
    """A worker's images as flat rows, which load fastest; nobody looks at the test split."""
    pixels = Sequence(Value("float32"), length=784)
    features = Features({"image": pixels, "label": Value("int64")})
    rows = {"image": shard[0].reshape(-1, 784), "label": shard[1]}
    train = Dataset.from_dict(rows, features=features)
    splits = DatasetDict({"train": train, "test": train.select(range(1))})
    return P2PFLDataset(splits, batch_size=batch, dataset_name="fashion-mnist")


def network(work: Work, nodes: int, stamps: Stamps) -> list[Node]:
    """Nodes that all know each other."""
    made = []
    for k, shard in enumerate(work.shards()[:nodes]):
        node = Node(
            LightningModel(Net(work.learning_rate)),
            data_of(shard, work.batch),
            addr=f"node-{k}",
            protocol=MemoryCommunicationProtocol(),
            aggregator=stamps.aggregator(),
        )
        node.start()
        for other in made:
            node.connect(other.addr)
        made.append(node)
    wait_convergence(made, nodes - 1, only_direct=False, wait=60)
    return made


def main() -> None:
    """Run the rounds, with every node in the training set of every round."""
    work = read_work()
    logger.set_level("ERROR")
    count = min(NODES, work.workers)
    report = Report(work)
    nodes = network(work, count, Stamps(report, count))
    first = loss_of(nodes[0].get_model().get_model(), work)
    nodes[0].set_start_learning(rounds=work.total_rounds, epochs=1, trainset_size=count)
    wait_to_finish(nodes, timeout=1200)
    last = loss_of(nodes[0].get_model().get_model(), work)
    mode = f"{count} nodes, FedAvg by gossip, {ACTORS} Ray actors x 1 thread"
    report.send("p2pfl", mode, (first, last), count)
    ray.shutdown()
    os._exit(0)  # dozens of threads would be waited for


if __name__ == "__main__":
    main()
