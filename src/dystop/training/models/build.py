"""Build a model: one of the catalogue by its name, or a user's own.

A user's own model is an import path, a factory or a module that serves as a prototype.
`build_model` seeds the weights and leaves torch's global randomness unchanged.
"""

import copy
import importlib
import inspect
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
from dystop.user_code import blamed, choose, summary

__all__ = ["MODELS", "CustomModel", "Factory", "build_model", "model_name"]

Factory = Callable[[int, tuple[int, ...], int], nn.Module]
CustomModel = nn.Module | Callable[..., nn.Module]
"""A module that is copied, or a callable as described by `EXPECTED`."""


def build_model(
    model: str | CustomModel,
    channels: int,
    size: tuple[int, ...],
    classes: int,
    seed: int,
    folder: str = "",
) -> nn.Module:
    """Make a model; its weights depend on the seed and on the name of the model alone.

    A module is copied with the weights it has.

    Args:
        model: A key of `MODELS`, "package.module:factory", a factory, or a module.
        channels: Channels of one sample.
        size: Height and width of one sample in pixels.
        classes: Number of classes K.
        seed: Seed of the run.
        folder: Where the module of an import path lies; empty: where Python finds it.

    >>> model = build_model("cnn", 1, (28, 28), 10, seed=0)
    >>> sum(p.numel() for p in model.parameters())
    21840
    """
    name = model_name(model)
    if isinstance(model, nn.Module):
        return _checked(name, copy.deepcopy(model), (channels, *size), classes)
    with seed_generators(torch.device("cpu"), seed, f"model/{name}"):
        if not isinstance(model, str):
            return _from_factory(name, model, channels, size, classes)
        if ":" in name:
            return _from_factory(name, _import(name, folder), channels, size, classes)
        return _factory(_entry(name, size))(channels, size, classes)


def model_name(model: str | CustomModel) -> str:
    """Return the name of a model; that of a user's own is its import path.

    >>> model_name("cnn"), model_name(nn.Flatten()), model_name(nn.Flatten)
    ('cnn', 'torch.nn.modules.flatten:Flatten', 'torch.nn.modules.flatten:Flatten')
    """
    if isinstance(model, str):
        return model
    named = type(model) if isinstance(model, nn.Module) else model
    named = getattr(named, "func", named)  # of a functools.partial
    kind = type(named)
    module = getattr(named, "__module__", kind.__module__)
    return f"{module}:{getattr(named, '__qualname__', kind.__qualname__)}"


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


def _from_factory(
    path: str, factory: Any, channels: int, size: tuple[int, ...], classes: int
) -> nn.Module:
    """Call the factory with the arguments it takes, and check the result."""
    offered = {"channels": channels, "size": size, "classes": classes}
    try:
        module = factory(**_accepted(factory, offered))
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"model = {path!r} could not be built: {summary(error)}; {EXPECTED}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model = {path!r} returned a {type(module).__name__}; {EXPECTED}")
    return _checked(path, module, (channels, *size), classes)


def _checked(path: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the module if it can be trained and maps samples to class scores."""
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"model = {path!r} has no trainable parameter")
    _try_forward(path, module, shape, classes)
    return module


def _import(path: str, folder: str) -> Any:
    """Import the factory that an import path names."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"model = {path!r} is not an import path; {EXPECTED}")
    choose(module_name)
    try:
        with _importable(folder):
            module = importlib.import_module(module_name)
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"model = {path!r}: module {module_name!r} cannot be imported ({summary(error)}); "
            f"{_where(folder)}; {EXPECTED}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(
            f"model = {path!r}: module {module_name!r} has no callable {attribute!r}; {EXPECTED}"
        )
    return factory


def _where(folder: str) -> str:
    """Say where a module was looked for, and where it may be put."""
    searched = f"not found in model.folder = {folder!r} either; " if folder else ""
    return f"{searched}put it beside the configuration file, install it or use PYTHONPATH"


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Import from this folder first, as `python FILE` does; from no other one if it is empty."""
    if not folder:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


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
        raise blamed(error) or ConfigError(
            f"model = {path!r} fails on a batch of shape {(2, *shape)}: {summary(error)}"
        ) from error
    finally:
        module.train(was_training)
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if given != (2, classes):
        raise ConfigError(
            f"model = {path!r} turns a batch of shape {(2, *shape)} into {given}; expected one "
            f"score for each class, shape {(2, classes)}"
        )
