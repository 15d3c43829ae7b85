"""SqueezeNet 1.0 with the changes the paper made for SVHN (section "Testbed Setup").

The first convolution has 96 outputs, a 3x3 kernel, stride 1 and padding 1 (the original: 7x7,
stride 2); the classifier is dropout (0.5), a 1x1 convolution to the classes, ReLU and adaptive
average pooling. The eight fire modules and the three 3x3 max-poolings are those of version 1.0.
"""

import torch
from torch import Tensor, nn

POOL = "pool"
LAYOUT: tuple[tuple[int, int, int] | str, ...] = (
    # (inputs, squeezed, expanded): a fire module gives twice `expanded` channels
    POOL,
    (96, 16, 64),
    (128, 16, 64),
    (128, 32, 128),
    POOL,
    (256, 32, 128),
    (256, 48, 192),
    (384, 48, 192),
    (384, 64, 256),
    POOL,
    (512, 64, 256),
)


class Fire(nn.Module):
    """Squeeze by a 1x1 convolution, expand by 1x1 and 3x3 convolutions side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of both expansions, one after the other."""
        x = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat([self.expand1(x), self.expand3(x)], 1))


def _layer(entry: tuple[int, int, int] | str) -> nn.Module:
    """Module of one entry of the layout."""
    if isinstance(entry, str):
        return nn.MaxPool2d(3, stride=2, ceil_mode=True)
    return Fire(*entry)


def squeezenet(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """SqueezeNet as the paper adapts it to SVHN."""
    stem = nn.Conv2d(channels, 96, 3, stride=1, padding=1)
    last = nn.Conv2d(512, classes, 1)
    features = nn.Sequential(stem, nn.ReLU(), *(_layer(entry) for entry in LAYOUT))
    classifier = nn.Sequential(
        nn.Dropout(0.5), last, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = nn.Sequential(features, classifier)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            _initialise(module, is_last=module is last)
    return model


def _initialise(conv: nn.Conv2d, is_last: bool) -> None:
    """Set Kaiming's uniform weights, small normal ones in the last layer, and no bias.

    Without batch norm torch's default weights shrink the signal to nothing in ten layers.
    """
    if is_last:
        nn.init.normal_(conv.weight, std=0.01)
    else:
        nn.init.kaiming_uniform_(conv.weight)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
