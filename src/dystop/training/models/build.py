"""Build a model: one of the catalogue by its name, or a user's own.

A user's own model is an import path, a factory or a module that serves as a prototype.
`build_model` seeds the weights and leaves torch's global randomness unchanged.
"""

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dystop.data.npz import IF_TABLE
from dystop.errors import ConfigError, nearest
from dystop.training.models.catalogue import MODELS, Model, takes_images
from dystop.training.randomness import seed_generators
from dystop.training.tasks.task import SampleKind
from dystop.user_code import blamed, choose, import_object, summary

__all__ = ["MODELS", "CustomModel", "Factory", "build_for", "build_model", "model_name"]

Factory = Callable[..., nn.Module]
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
    """Make a model that turns numbers into class scores; see `build_for`.

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
    return build_for(model, SampleKind((channels, *size), classes), (classes,), seed, folder)


def build_for(
    model: str | CustomModel,
    kind: SampleKind,
    outputs: tuple[int, ...],
    seed: int,
    folder: str = "",
) -> nn.Module:
    """Make a model; its weights depend on the seed and on the name of the model alone.

    A module is copied with the weights it has.

    Args:
        model: A key of `MODELS`, "package.module:factory", a factory, or a module.
        kind: The samples that it takes.
        outputs: Shape of what it returns for one sample.
        seed: Seed of the run.
        folder: Where the module of an import path lies; empty: where Python finds it.
    """
    name = model_name(model)
    if not isinstance(model, str):
        choose(name.partition(":")[0])
    if isinstance(model, nn.Module):
        return _checked(name, copy.deepcopy(model), kind, outputs)
    with seed_generators(torch.device("cpu"), seed, f"model/{name}"):
        if not isinstance(model, str):
            return _from_factory(name, model, kind, outputs)
        if ":" in name:
            factory = import_object("model", name, folder, EXPECTED)
            return _from_factory(name, factory, kind, outputs)
        made = _entry(name, kind)().factory()
        if name not in MODELS.built_in:
            return _from_factory(name, made, kind, outputs)
        module: nn.Module = made(**_accepted(made, _offered(kind, outputs)))
        return module


def _offered(kind: SampleKind, outputs: tuple[int, ...]) -> dict[str, Any]:
    """Return the keyword arguments that a factory may take."""
    if kind.tokens:
        per_token = len(outputs) > 1
        return {
            "tokens": kind.tokens,
            "length": kind.shape[0],
            "classes": outputs[-1],
            "per_token": per_token,
        }
    channels, *size = kind.shape
    return {
        "features": math.prod(kind.shape),
        "channels": channels,
        "size": tuple(size),
        "classes": outputs[-1],
    }


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


def _entry(name: str, kind: SampleKind) -> type[Model]:
    """Return the catalogue entry; refuse samples that the model cannot take."""
    if name not in MODELS:
        raise ConfigError(
            f"model = {name!r} is not known{nearest(name, MODELS)}; allowed: "
            f"{', '.join(MODELS)}, or 'package.module:factory' for a torch module of your own"
        )
    entry = MODELS[name]
    if entry.tokens != bool(kind.tokens):
        suited = ", ".join(n for n, other in MODELS.items() if other.tokens == bool(kind.tokens))
        wants, has = ("token ids", "numbers") if entry.tokens else ("numbers", "token ids")
        raise ConfigError(
            f"model = {name!r} takes {wants}, but the samples of the data set are {has}; use one "
            f"of {suited}, or leave model.name out{_if_table(kind)}"
        )
    if not takes_images(entry, kind.shape):
        given = "x".join(map(str, kind.shape[1:])) or "none: a sample is a row of a table"
        side = entry.minimal_side
        raise ConfigError(
            f"model = {name!r} needs images of at least {side}x{side} pixels, but the data set "
            f"has {given}; use 'mlp' or 'softmax', or a data set of larger images"
        )
    return entry


def _if_table(kind: SampleKind) -> str:
    """Return advice for samples that may have become token ids by mistake."""
    return f"; its integers are taken for token ids: {IF_TABLE}" if kind.tokens else ""


EXPECTED = (
    "expected 'package.module:factory', where factory is a callable (or a class) that takes "
    "any of the keyword arguments features, classes, for images also channels, size=(height, "
    "width) (for token ids: tokens, length, classes, per_token) and returns a torch.nn.Module"
)


def _from_factory(path: str, factory: Any, kind: SampleKind, outputs: tuple[int, ...]) -> nn.Module:
    """Call the factory with the arguments it takes, and check the result."""
    try:
        module = factory(**_accepted(factory, _offered(kind, outputs)))
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"model = {path!r} could not be built: {summary(error)}{_if_table(kind)}; {EXPECTED}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model = {path!r} returned a {type(module).__name__}; {EXPECTED}")
    return _checked(path, module, kind, outputs)


def _checked(path: str, module: nn.Module, kind: SampleKind, outputs: tuple[int, ...]) -> nn.Module:
    """Return the module if it can be trained and returns what the task expects."""
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"model = {path!r} has no trainable parameter")
    _try_forward(path, module, kind, outputs)
    return module


def _accepted(factory: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the factory's signature accepts."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def _try_forward(path: str, module: nn.Module, kind: SampleKind, outputs: tuple[int, ...]) -> None:
    """Check that a pass over two zero samples gives outputs of the right shape."""
    was_training, shape = module.training, (2, *kind.shape)
    module.eval()
    try:
        with torch.no_grad():
            scores = module(torch.zeros(shape, dtype=torch.int64 if kind.tokens else torch.float32))
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"model = {path!r} fails on a batch of shape {shape}: {summary(error)}{_if_table(kind)}"
        ) from error
    finally:
        module.train(was_training)
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if given != (2, *outputs):
        raise ConfigError(
            f"model = {path!r} turns a batch of shape {shape} into {given}; expected "
            f"{'one score for each class, ' if len(outputs) == 1 else ''}shape {(2, *outputs)}"
        )
