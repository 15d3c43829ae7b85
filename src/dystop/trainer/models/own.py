"""A user's own torch module, named by import path."""

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dystop.errors import ConfigError

EXPECTED = (
    "expected 'package.module:factory', where factory is a callable (a class will do) that takes "
    "any of the keyword arguments channels, size=(height, width), classes and returns a "
    "torch.nn.Module"
)


def own_model(path: str, channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """Import the factory, call it with the arguments it takes, and try the result once."""
    factory = _import(path)
    offered = {"channels": channels, "size": size, "classes": classes}
    try:
        module = factory(**_accepted(factory, offered))
    except Exception as error:
        raise ConfigError(
            f"model = {path!r} could not be built: {_said(error)}; {EXPECTED}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model = {path!r} returned a {type(module).__name__}; {EXPECTED}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError(f"model = {path!r} has no parameter that can be trained")
    _try_forward(path, module, (channels, *size), classes)
    return module


def _said(error: Exception) -> str:
    """The error's type and its first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _import(path: str) -> Any:
    """Fetch the factory that an import path names."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"model = {path!r} is not an import path; {EXPECTED}")
    try:
        with _this_folder_too():
            module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"model = {path!r}: module {module_name!r} cannot be imported ({_said(error)}); "
            f"install it or put its folder on PYTHONPATH; {EXPECTED}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(
            f"model = {path!r}: module {module_name!r} has no callable {attribute!r}; {EXPECTED}"
        )
    return factory


@contextmanager
def _this_folder_too() -> Iterator[None]:
    """Also look where the user is, as `python` itself would."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _accepted(factory: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """The offered arguments that the factory's signature has room for."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def _try_forward(path: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """One pass over two empty samples must give two rows of class scores."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            scores = module(torch.zeros(2, *shape))
    except Exception as error:
        raise ConfigError(
            f"model = {path!r} fails on a batch of shape {(2, *shape)}: {_said(error)}"
        ) from error
    finally:
        module.train(was_training)
    given = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if given != (2, classes):
        raise ConfigError(
            f"model = {path!r} turns a batch of shape {(2, *shape)} into {given}; expected one "
            f"score for each class, shape {(2, classes)}"
        )
