"""A trained model in a file: named tensors, with a model card in the header.

The file is plain safetensors, without pickle. `read_model` builds a model of the catalogue from
its name alone. It never imports a user's own module because a file says so: the caller passes it.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dystop.errors import ConfigError, RunFolderError
from dystop.foreign_files import open_regular, read_bounded
from dystop.sealed import MAX_HEADER_BYTES, read_header
from dystop.serialization import UNREADABLE
from dystop.strict_json import parse_json
from dystop.training.adapters import Adapter, with_adapters
from dystop.training.flat import Layout, layout_of
from dystop.training.models.build import MODELS, CustomModel, build_for
from dystop.training.samples import normaliser
from dystop.training.tasks.task import SampleKind

FORMAT = "dystop-model-1"


@dataclass(frozen=True)
class ModelCard:
    """What one must know to use a model: its architecture, its inputs and its classes."""

    model: str  # of the catalogue, or "package.module:factory"
    shape: tuple[int, ...]  # channels, height and width; or the number of features or tokens
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel; bytes count as 0..1
    std: tuple[float, ...]
    tokens: int = 0  # size of the vocabulary; 0: samples are numbers
    outputs: tuple[int, ...] = ()  # shape of what it returns for a sample; empty: one per class
    base: str = ""  # file of the base, where this file holds its adapters only
    base_sha256: str = ""
    adapter: Adapter | None = None

    def to_json(self) -> str:
        """Return the card as JSON, without the later fields that do not apply."""
        later = ("tokens", "outputs", "base", "base_sha256", "adapter")
        return json.dumps({k: v for k, v in asdict(self).items() if k not in later or v})

    @property
    def kind(self) -> SampleKind:
        """The samples that the model takes."""
        return SampleKind(self.shape, self.classes, self.tokens)


@dataclass(frozen=True)
class LoadedModel:
    """A trained model. Called with samples, it returns logits, or the numbers of a regression."""

    module: nn.Module  # in evaluation mode
    card: ModelCard

    @torch.no_grad()
    def __call__(self, images: NDArray[Any] | Tensor) -> Tensor:
        """Return the logits [n, K] of samples as they are in the data set: bytes, or floats.

        Images are [n, C, H, W], rows of a table [n, F], and the samples of a text token ids [n, T].
        """
        x = torch.as_tensor(images)
        if self.card.tokens:
            outputs: Tensor = self.module(x.long())
            return outputs
        scale, shift = normaliser(x.dtype == torch.uint8, self.card.mean, self.card.std, x.ndim)
        logits: Tensor = self.module(x.float() * scale + shift)
        return logits

    def names(self, images: NDArray[Any] | Tensor) -> list[str]:
        """Return the class name of every image."""
        return [self.card.class_names[k] for k in self(images).argmax(1).tolist()]


def loaded_model(
    layout: Layout,
    vector: Tensor,
    counters: Tensor,
    card: ModelCard,
    custom: CustomModel | None = None,
) -> LoadedModel:
    """Return the model with these weights, built by its name or from a user's own model."""
    tensors = layout.unflatten(vector.cpu(), counters.cpu())
    return _fill(_build(card, custom), tensors, card, card.model)


def to_bytes(layout: Layout, vector: Tensor, counters: Tensor, card: ModelCard) -> bytes:
    """Return a model [W] with its counters [C] as the bytes of a safetensors file."""
    named = layout.unflatten(vector.detach().cpu(), counters.cpu())
    header = {FORMAT: card.to_json()}  # a single entry: safetensors writes several in random order
    blob: bytes = save({k: v.contiguous().clone() for k, v in named.items()}, metadata=header)
    return blob


def average_models(blobs: Sequence[bytes], share: Tensor) -> bytes:
    """Average models by their shares [N]; integer tensors are those of the first model."""
    loaded = [load(blob) for blob in blobs]
    mean = {
        name: _mean([tensors[name] for tensors in loaded], share)
        if first.is_floating_point()
        else first
        for name, first in loaded[0].items()
    }
    blob: bytes = save(mean, metadata={FORMAT: _card(io.BytesIO(blobs[0])).to_json()})
    return blob


def _mean(tensors: list[Tensor], share: Tensor) -> Tensor:
    flat = torch.stack([t.reshape(-1) for t in tensors])
    return (share.to(flat.dtype) @ flat).view(tensors[0].shape)


def read_model(path: Path, module: nn.Module | None = None) -> LoadedModel:
    """Read a model from a file.

    Args:
        path: The file.
        module: For a user's own model, a module of that kind; its weights are replaced.
    """
    with _reading(path), open_regular(path, follow=True) as file:
        card = _card(file)
    if module is None and card.model not in MODELS:
        raise RunFolderError(
            f"{path}: holds the user's own model {card.model!r}, which is not imported because a "
            "file says so; pass a module: load_model(..., module=make(...))"
        )
    with torch.device("meta"):  # it takes no memory, whatever sizes the card claims
        kind = module or _built(card, path)
    with _reading(path):
        tensors = load(read_bounded(path, _most_bytes(kind), follow=True))
    _check_alike(kind, tensors, str(path))
    return _fill(module or _build(card), tensors, card, str(path))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (*UNREADABLE, ValueError) as error:
        raise RunFolderError(f"{path}: not a model file of dystop") from error


def _most_bytes(module: nn.Module) -> int:
    """Return the most bytes that a file with the tensors of a module has, in any precision."""
    return MAX_HEADER_BYTES + 8 * sum(t.numel() for t in (*module.parameters(), *module.buffers()))


def _built(card: ModelCard, path: Path) -> nn.Module:
    """Return a module of this kind; refuse a card whose sizes cannot be those of a model."""
    try:
        return _build(card)
    except (ConfigError, TypeError, ValueError, RuntimeError) as error:
        raise RunFolderError(f"{path}: not a model file of dystop: {error}") from error


def _card(file: BinaryIO) -> ModelCard:
    header = parse_json(read_header(file))["__metadata__"]
    stored: dict[str, Any] = parse_json(header[FORMAT])
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    if isinstance(adapter := plain.get("adapter"), dict):
        plain["adapter"] = Adapter(adapter["rank"], adapter["alpha"], tuple(adapter["layers"]))
    card = ModelCard(**plain)
    if not isinstance(card.model, str) or not isinstance(card.base, str):
        raise TypeError("the name of the model or of its base is no text")
    return card


def _build(card: ModelCard, custom: CustomModel | None = None) -> nn.Module:
    """Return a module of this kind; its weights will be replaced."""
    outputs = card.outputs or (card.classes,)
    module = build_for(card.model if custom is None else custom, card.kind, outputs, seed=0)
    if card.adapter is None:
        return module
    if not card.base_sha256:
        raise RunFolderError(f"the card names the base {card.base!r} without its digest")
    load_base(module, Path(card.base), card.base_sha256)
    return with_adapters(module, card.adapter, seed=0)


def base_file(path: Path) -> Path:
    """Return the file of a base: a model file, or the global model of a run folder."""
    return path / "models" / "global.safetensors" if path.is_dir() else path


def base_sha256(path: Path) -> str:
    """Return the digest of the file of a base."""
    with _opening_base(path), open_regular(base_file(path), follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_base(module: nn.Module, path: Path, sha256: str = "") -> None:
    """Copy the tensors of a base into a module.

    Args:
        module: A module of the same kind.
        path: A safetensors file, or the folder of a run that saved its global model.
        sha256: Digest that the file must have; empty: any.
    """
    where = str(base_file(path))
    with _opening_base(path):
        blob = read_bounded(base_file(path), _most_bytes(module), follow=True)
    if sha256 and hashlib.sha256(blob).hexdigest() != sha256:
        raise ConfigError(
            f"model.base = {where!r}: not the file that the run began with (model.base_sha256 is "
            f"{sha256[:16]}...); restore it, or begin a new run"
        )
    try:
        tensors = load(blob)
    except SafetensorError as error:
        raise ConfigError(f"model.base = {where!r}: not a safetensors file ({error})") from None
    try:
        _fill_tensors(module, tensors, where)
    except RunFolderError as error:
        raise ConfigError(
            f"model.base: {error}; model.name must be the model of the base"
        ) from None


@contextmanager
def _opening_base(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"model.base = {str(path)!r}: cannot be read: {error.strerror or error}; give a "
            "safetensors file, or the folder of a run that saved its model (output.models)"
        ) from None


def _fill(
    module: nn.Module, tensors: dict[str, Tensor], card: ModelCard, where: str
) -> LoadedModel:
    """Return the model with these tensors; refuse tensors of another kind of model."""
    _fill_tensors(module, tensors, where)
    return LoadedModel(module.eval(), card)


def _fill_tensors(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    _check_alike(module, tensors, where)
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _check_alike(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Refuse tensors whose names or shapes are not those of a module."""
    layout = layout_of(module)
    expected = {s.name: s.shape for s in (*layout.trained, *layout.kept, *layout.counted)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        names = sorted(k for k in expected.keys() | found if expected.get(k) != found.get(k))
        raise RunFolderError(
            f"{where}: another kind of model; these tensors differ: {', '.join(names)}"
        )
