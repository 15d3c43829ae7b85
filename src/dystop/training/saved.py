"""A trained model in a file: named tensors, and in the header what must be known to use them.

The file is plain safetensors, no pickle; whatever reads those can use it. `read_model` builds a
model of the catalogue from its name alone. A model of one's own is never imported because a file
says so: the reader passes the module.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dystop.errors import RunFolderError
from dystop.training.flat import Layout, layout_of
from dystop.training.models.build import MODELS, build_model
from dystop.training.samples import normaliser

FORMAT = "dystop-model-1"


@dataclass(frozen=True)
class ModelCard:
    """What must be known to use a model: how it is built, what it is fed, what it answers."""

    model: str  # of the catalogue, or "package.module:factory"
    shape: tuple[int, int, int]  # channels, height and width of one image
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel; bytes count as 0..1
    std: tuple[float, ...]


@dataclass(frozen=True)
class LoadedModel:
    """A model that has been trained: call it with images and it answers with logits."""

    module: nn.Module  # in evaluation mode
    card: ModelCard

    @torch.no_grad()
    def __call__(self, images: NDArray[Any] | Tensor) -> Tensor:
        """Logits [n, K] of images [n, C, H, W]: bytes, or floats as the data set has them."""
        x = torch.as_tensor(images)
        scale, shift = normaliser(x.dtype == torch.uint8, self.card.mean, self.card.std, x.ndim)
        logits: Tensor = self.module(x.float() * scale + shift)
        return logits

    def names(self, images: NDArray[Any] | Tensor) -> list[str]:
        """The class of every image, in words."""
        return [self.card.class_names[k] for k in self(images).argmax(1).tolist()]


def loaded_model(layout: Layout, vector: Tensor, counters: Tensor, card: ModelCard) -> LoadedModel:
    """A model with these numbers, built by its name."""
    return _filled(_built(card), layout.unflatten(vector.cpu(), counters.cpu()), card, card.model)


def to_bytes(layout: Layout, vector: Tensor, counters: Tensor, card: ModelCard) -> bytes:
    """A model [W] with its counters [C] as a safetensors file."""
    named = layout.unflatten(vector.detach().cpu(), counters.cpu())
    header = {FORMAT: json.dumps(asdict(card))}  # one entry: the order of several would be random
    blob: bytes = save({k: v.contiguous().clone() for k, v in named.items()}, metadata=header)
    return blob


def joined(blobs: Sequence[bytes], share: Tensor) -> bytes:
    """The average of models in files, by their shares [N]; whole numbers are the first one's."""
    every = [load(blob) for blob in blobs]
    mean = {
        name: _mean([tensors[name] for tensors in every], share)
        if first.is_floating_point()
        else first
        for name, first in every[0].items()
    }
    blob: bytes = save(mean, metadata={FORMAT: json.dumps(asdict(_card(blobs[0])))})
    return blob


def _mean(tensors: list[Tensor], share: Tensor) -> Tensor:
    flat = torch.stack([t.reshape(-1) for t in tensors])
    return (share.to(flat.dtype) @ flat).view(tensors[0].shape)


def read_model(path: Path, module: nn.Module | None = None) -> LoadedModel:
    """The model of a file.

    Args:
        path: The file.
        module: For a model of one's own, a module of its kind; its weights are replaced.
    """
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        card, tensors = _card(blob), load(blob)
    except (SafetensorError, KeyError, TypeError, ValueError, struct.error) as error:
        raise RunFolderError(f"{path}: not a model that dystop has written") from error
    if module is None and card.model not in MODELS:
        raise RunFolderError(
            f"{path}: a model of one's own ({card.model}), which is not imported because a file "
            "says so; pass one: load_model(..., module=make(...))"
        )
    return _filled(_built(card) if module is None else module, tensors, card, str(path))


def _card(blob: bytes) -> ModelCard:
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])["__metadata__"]
    told: dict[str, Any] = json.loads(header[FORMAT])
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told.items()}
    return ModelCard(**plain)


def _built(card: ModelCard) -> nn.Module:
    """A module of this kind; its weights will be replaced."""
    channels, *size = card.shape
    return build_model(card.model, channels, tuple(size), card.classes, seed=0)


def _filled(
    module: nn.Module, tensors: dict[str, Tensor], card: ModelCard, where: str
) -> LoadedModel:
    """The module with these tensors; refuses another module's."""
    layout = layout_of(module)
    expected = {s.name: s.shape for s in (*layout.trained, *layout.kept, *layout.counted)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        names = sorted(k for k in expected.keys() | found if expected.get(k) != found.get(k))
        raise RunFolderError(f"{where}: another kind of model; it differs in: {', '.join(names)}")
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return LoadedModel(module.eval(), card)
