"""The small models: the paper's CNN, a multi-layer perceptron and softmax regression."""

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F


def _after_cnn(side: int) -> int:
    """Side of the feature map behind two rounds of 5x5 convolution and 2x2 pooling."""
    for _ in range(2):
        side = (side - 4) // 2
    return side


def cnn(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Return the paper's CNN: two 5x5 convolutions with 2x2 max-pooling, two full layers.

    The paper's softmax layer is inside the cross-entropy loss. 21,840 parameters on 1x28x28 images
    of 10 classes.
    """
    features = 20 * math.prod(_after_cnn(side) for side in size)
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(channels, 10, 5)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(10, 20, 5)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(features, 50)),
        ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(50, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def mlp(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Return two hidden layers of 200 units: 784-200-200-10 on 1x28x28 images."""
    layers: list[tuple[str, nn.Module]] = [
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(channels * math.prod(size), 200)),
        ("relu1", nn.ReLU()),
        ("fc2", nn.Linear(200, 200)),
        ("relu2", nn.ReLU()),
        ("fc3", nn.Linear(200, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def softmax(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression: one linear layer, a convex problem."""
    layers: list[tuple[str, nn.Module]] = [
        ("flatten", nn.Flatten()),
        ("fc", nn.Linear(channels * math.prod(size), classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


class UnitLength(nn.Module):
    """Scales every input to length one; an empty image stays empty."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows of length one."""
        return F.normalize(x, dim=1)


def softmax_unit(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression without bias on inputs of length one: its smoothness is known."""
    layers: list[tuple[str, nn.Module]] = [
        ("flatten", nn.Flatten()),
        ("unit", UnitLength()),
        ("fc", nn.Linear(channels * math.prod(size), classes, bias=False)),
    ]
    return nn.Sequential(OrderedDict(layers))
