"""The model of `peer_p2pfl.py`: a module of its own, so that Ray's actors import it by name."""

import lightning
import torch
from nets import cnn
from torch.nn import functional as F


class Net(lightning.LightningModule):
    """The CNN as a Lightning module, trained by plain SGD."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.net, self.lr_rate = cnn(), learning_rate

    def forward(self, x):
        """Scores of the classes."""
        return self.net(x)

    def training_step(self, batch, batch_index):
        """What a local step minimizes."""
        return F.cross_entropy(self.net(batch["image"].view(-1, 1, 28, 28)), batch["label"])

    def configure_optimizers(self):
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr_rate)
