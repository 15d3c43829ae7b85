"""`build_model`: a model by its name in the catalogue, or a user's own by its import path.

The weights are seeded, and torch's global generators stay as they were.
`dystop.training.models.catalogue` describes the models that come with dystop.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn

from dystop.errors import ConfigError, nearest
from dystop.training.models.catalogue import MODELS, ModelEntry
from dystop.training.randomness import seed_generators

__all__ = ["MODELS", "Factory", "build_model"]

Factory = Callable[[int, tuple[int, ...], int], nn.Module]


def build_model(
    name: str, channels: int, size: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """Build a model. Its weights depend on (seed, name) alone.

    Args:
        name: A key of `MODELS`, or "package.module:factory" for a module of the user.
        channels: Channels of one sample.
        size: Height and width of one sample in pixels.
        classes: Number of classes K.
        seed: Seed of the run.

    >>> model = build_model("cnn", 1, (28, 28), 10, seed=0)
    >>> sum(p.numel() for p in model.parameters())
    21840
    """
    with seed_generators(torch.device("cpu"), seed, f"model/{name}"):
        if ":" in name:
            return own_model(name, channels, size, classes)
        return _factory(_entry(name, size))(channels, size, classes)


def _factory(entry: ModelEntry) -> Factory:
    module, _, function = entry.factory.partition(":")
    made: Factory = getattr(import_module(f"dystop.training.models.{module}"), function)
    return made


def _entry(name: str, size: tuple[int, ...]) -> ModelEntry:
    """Return the catalogue entry; refuse inputs that the model cannot take."""
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


EXPECTED = (
    "expected 'package.module:factory', where factory is a callable (or a class) that takes "
    "any of the keyword arguments channels, size=(height, width), classes and returns a "
    "torch.nn.Module"
)


def own_model(path: str, channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Import the factory, call it with the arguments it accepts, and try the module once."""
    factory = _import(path)
    offered = {"channels": channels, "size": size, "classes": classes}
    try:
        module = factory(**_accepted(factory, offered))
    except Exception as error:
        raise ConfigError(
            f"model = {path!r} could not be built: {_summary(error)}; {EXPECTED}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model = {path!r} returned a {type(module).__name__}; {EXPECTED}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"model = {path!r} has no trainable parameter")
    _try_forward(path, module, (channels, *size), classes)
    return module


def _summary(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _import(path: str) -> Any:
    """Import the factory that an import path names."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"model = {path!r} is not an import path; {EXPECTED}")
    try:
        with _current_folder_importable():
            module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"model = {path!r}: module {module_name!r} cannot be imported ({_summary(error)}); "
            f"install it or put its folder on PYTHONPATH; {EXPECTED}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(
            f"model = {path!r}: module {module_name!r} has no callable {attribute!r}; {EXPECTED}"
        )
    return factory


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Also import from the current folder, as `python` itself does."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _accepted(factory: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the factory's signature accepts."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def _try_forward(path: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Check that a pass over two zero samples gives two rows of class scores."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            scores = module(torch.zeros(2, *shape))
    except Exception as error:
        raise ConfigError(
            f"model = {path!r} fails on a batch of shape {(2, *shape)}: {_summary(error)}"
        ) from error
    finally:
        module.train(was_training)
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if given != (2, classes):
        raise ConfigError(
            f"model = {path!r} turns a batch of shape {(2, *shape)} into {given}; expected one "
            f"score for each class, shape {(2, classes)}"
        )
