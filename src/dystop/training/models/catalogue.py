"""What models there are, without loading torch: `dystop.training.models.build` makes them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from dystop.registry import Registry, imported


class Model(ABC):
    """A model by name."""

    name: ClassVar[str]
    summary: ClassVar[str]
    minimal_side: ClassVar[int | None] = None
    """Pixels of the smallest image that it takes; None: any shape will do."""
    batch_norm: ClassVar[bool] = False
    """Whether it has layers of batch norm."""
    tokens: ClassVar[bool] = False
    """Whether it takes token ids instead of numbers."""

    @abstractmethod
    def factory(self) -> Callable[..., Any]:
        """Return what makes the torch module.

        A callable with any of the keyword arguments features, classes, for images also channels and
        size, for token ids tokens, length, classes and per_token.
        """


def takes_images(entry: type[Model], shape: tuple[int, ...]) -> bool:
    """Return whether samples of this shape are images that are large enough for a model."""
    side, size = entry.minimal_side, shape[1:]
    return side is None or (len(size) == 2 and min(size) >= side)


def usual_model(shape: tuple[int, ...], tokens: int) -> str:
    """Return the model for samples of a shape, where nobody names one.

    >>> usual_model((1, 28, 28), 0), usual_model((4,), 0), usual_model((12,), 30)
    ('cnn', 'mlp', 'transformer')
    """
    if tokens:
        return "transformer"
    return "cnn" if takes_images(MODELS["cnn"], shape) else "mlp"


class _Packaged(Model):
    where: ClassVar[str]  # module of this package and function in it

    def factory(self) -> Callable[..., Any]:
        """Import the function."""
        made: Callable[..., Any] = imported(f"dystop.training.models.{self.where}")
        return made


# Nets with batch norm need two pixels per channel at their last layer: a last mini-batch may hold
# a single sample, and a variance over one number does not exist.
class _Cnn(_Packaged):
    name = "cnn"
    summary = "two 5x5 convolutions, two linear layers; the paper's for FMNIST"
    where = "small:cnn"
    minimal_side = 16


class _Mlp(_Packaged):
    name = "mlp"
    summary = "two hidden layers of 200 units, ReLU"
    where = "small:mlp"


class _MobileNetV2(_Packaged):
    name = "mobilenet-v2"
    summary = "MobileNet-V2 for small images; the paper's testbed, CIFAR-100"
    where = "mobilenet:mobilenet_v2"
    minimal_side = 9
    batch_norm = True


class _ResNet18(_Packaged):
    name = "resnet18"
    summary = "ResNet-18, batch norm, 3x3 stem; the paper's, CIFAR-10"
    where = "resnet:resnet18"
    minimal_side = 9
    batch_norm = True


class _ResNet18GroupNorm(_Packaged):
    name = "resnet18-gn"
    summary = "ResNet-18, group norm of 32 groups, 3x3 stem"
    where = "resnet:resnet18_gn"
    minimal_side = 8


class _Softmax(_Packaged):
    name = "softmax"
    summary = "softmax regression: one linear layer, convex"
    where = "small:softmax"


class _SoftmaxUnit(_Packaged):
    name = "softmax-unit"
    summary = (
        "softmax regression on inputs of length one, no bias; strongly convex with training.l2"
    )
    where = "small:softmax_unit"


class _SqueezeNet(_Packaged):
    name = "squeezenet"
    summary = "SqueezeNet 1.0 with a 3x3 stem; the paper's testbed, SVHN"
    where = "squeezenet:squeezenet"
    minimal_side = 8


class _Transformer(_Packaged):
    name = "transformer"
    summary = "transformer for token ids, two blocks of width 64; 100,000 parameters"
    where = "transformer:transformer"
    tokens = True


class _TransformerLarge(_Packaged):
    name = "transformer-large"
    summary = "transformer for token ids, four blocks of width 192; 1.8 million parameters"
    where = "transformer:transformer_large"
    tokens = True


MODELS: Registry[Model] = Registry(
    "model",
    Model,
    "dystop.models",
    (
        _Cnn,
        _Mlp,
        _MobileNetV2,
        _ResNet18,
        _ResNet18GroupNorm,
        _Softmax,
        _SoftmaxUnit,
        _SqueezeNet,
        _Transformer,
        _TransformerLarge,
    ),
)
