"""What models there are, without loading torch: `dystop.training.models.build` makes them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `dystop list models`."""

    factory: str  # module of this package and function in it
    minimal_side: int | None  # pixels; None where any shape will do
    meaning: str
    batch_norm: bool = False
    tokens: bool = False  # whether it takes token ids instead of numbers


def takes_images(entry: ModelEntry, shape: tuple[int, ...]) -> bool:
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


# Nets with batch norm need two pixels per channel at their last layer: a last mini-batch may hold
# a single sample, and a variance over one number does not exist.
MODELS: dict[str, ModelEntry] = {
    "cnn": ModelEntry(
        "small:cnn", 16, "two 5x5 convolutions, two linear layers; the paper's for FMNIST"
    ),
    "mlp": ModelEntry("small:mlp", None, "two hidden layers of 200 units, ReLU"),
    "mobilenet-v2": ModelEntry(
        "mobilenet:mobilenet_v2",
        9,
        "MobileNet-V2 for small images; the paper's testbed, CIFAR-100",
        batch_norm=True,
    ),
    "resnet18": ModelEntry(
        "resnet:resnet18",
        9,
        "ResNet-18, batch norm, 3x3 stem; the paper's, CIFAR-10",
        batch_norm=True,
    ),
    "resnet18-gn": ModelEntry(
        "resnet:resnet18_gn", 8, "ResNet-18, group norm of 32 groups, 3x3 stem"
    ),
    "softmax": ModelEntry("small:softmax", None, "softmax regression: one linear layer, convex"),
    "softmax-unit": ModelEntry(
        "small:softmax_unit",
        None,
        "softmax regression on inputs of length one, no bias; what 'dystop bound' needs",
    ),
    "squeezenet": ModelEntry(
        "squeezenet:squeezenet", 8, "SqueezeNet 1.0 with a 3x3 stem; the paper's testbed, SVHN"
    ),
    "transformer": ModelEntry(
        "transformer:transformer",
        None,
        "transformer for token ids, two blocks of width 64; 100,000 parameters",
        tokens=True,
    ),
    "transformer-large": ModelEntry(
        "transformer:transformer_large",
        None,
        "transformer for token ids, four blocks of width 192; 1.8 million parameters",
        tokens=True,
    ),
}
