"""The models by name, and a user's own model by import path.

`build_model` makes a module with seeded weights and leaves torch's global randomness as it was;
`MODELS` describes what there is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from dystop.errors import ConfigError, nearest
from dystop.trainer.mobilenet import mobilenet_v2
from dystop.trainer.own_model import own_model
from dystop.trainer.resnet import resnet18, resnet18_gn
from dystop.trainer.seeding import addressed
from dystop.trainer.small_nets import cnn, mlp, softmax
from dystop.trainer.squeezenet import squeezenet

Factory = Callable[[int, tuple[int, ...], int], nn.Module]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `dystop list models`."""

    factory: Factory
    minimal_side: int | None  # pixels; None where any shape will do
    meaning: str


# Nets with batch norm need two pixels per channel at their last layer: a last mini-batch may hold
# a single sample, and a variance over one number does not exist.
MODELS: dict[str, ModelEntry] = {
    "cnn": ModelEntry(cnn, 16, "two 5x5 convolutions, two linear layers; the paper's for FMNIST"),
    "mlp": ModelEntry(mlp, None, "two hidden layers of 200 units, ReLU"),
    "mobilenet-v2": ModelEntry(
        mobilenet_v2, 9, "MobileNet-V2 for small images; the paper's testbed, CIFAR-100"
    ),
    "resnet18": ModelEntry(resnet18, 9, "ResNet-18, batch norm, 3x3 stem; the paper's, CIFAR-10"),
    "resnet18-gn": ModelEntry(resnet18_gn, 8, "ResNet-18, group norm of 32 groups, 3x3 stem"),
    "softmax": ModelEntry(softmax, None, "softmax regression: one linear layer, convex"),
    "squeezenet": ModelEntry(
        squeezenet, 8, "SqueezeNet 1.0 with a 3x3 stem; the paper's testbed, SVHN"
    ),
}


def build_model(
    name: str, channels: int, size: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """Make a model with weights that depend on (seed, name) alone.

    Args:
        name: A key of `MODELS`, or "package.module:factory" for a module of one's own.
        channels: Channels of one sample.
        size: Height and width of one sample in pixels.
        classes: Number of classes K.
        seed: Seed of the run.

    >>> model = build_model("cnn", 1, (28, 28), 10, seed=0)
    >>> sum(p.numel() for p in model.parameters())
    21840
    """
    with addressed(torch.device("cpu"), seed, f"model/{name}"):
        if ":" in name:
            return own_model(name, channels, size, classes)
        return _entry(name, size).factory(channels, size, classes)


def _entry(name: str, size: tuple[int, ...]) -> ModelEntry:
    """Look the name up and refuse inputs that the model cannot take."""
    if name not in MODELS:
        raise ConfigError(
            f"model = {name!r} is not known{nearest(name, MODELS)}; allowed: "
            f"{', '.join(MODELS)}, or 'package.module:factory' for a torch module of your own"
        )
    entry = MODELS[name]
    side = entry.minimal_side
    if side is not None and (len(size) != 2 or min(size) < side):
        given = "x".join(map(str, size)) or "no image"
        raise ConfigError(
            f"model = {name!r} needs images of at least {side}x{side} pixels, but the data set "
            f"has {given}; use 'mlp' or 'softmax', or a data set of larger images"
        )
    return entry
