"""The models by name, and a user's own model by import path.

`build_model` makes a module with seeded weights and leaves torch's global randomness as it was;
`MODELS` describes what there is (`dystop.trainer.catalogue`).
"""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import nn

from dystop.errors import ConfigError, nearest
from dystop.trainer.catalogue import MODELS, ModelEntry
from dystop.trainer.models.own import own_model
from dystop.trainer.seeding import addressed

__all__ = ["MODELS", "Factory", "build_model"]

Factory = Callable[[int, tuple[int, ...], int], nn.Module]


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
        return _factory(_entry(name, size))(channels, size, classes)


def _factory(entry: ModelEntry) -> Factory:
    module, _, function = entry.factory.partition(":")
    made: Factory = getattr(import_module(f"dystop.trainer.models.{module}"), function)
    return made


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
