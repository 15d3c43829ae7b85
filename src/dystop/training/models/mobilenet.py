"""MobileNet-V2 for 32x32 images, as far as the paper's words reach (section "Testbed Setup").

The paper says that it "modifies the initial convolutional layer", "adjusts the stride of certain
feature blocks to 1", "reconfigures the final convolutional layer" and replaces the output layer.
What is chosen here, for an input of 32x32:

first conv     3x3, 32 outputs, stride 1 instead of 2                           32x32
stage 1, 2     16 and 24 channels, stride 1 (stage 2 originally 2)              32x32
stage 3        32 channels, stride 2 as in the original                         16x16
stage 4, 5     64 and 96 channels, strides 2 and 1 as in the original           8x8
stage 6, 7     160 and 320 channels, strides 2 and 1 as in the original         4x4
final conv     1x1, 320 to 1280, stride 1, no bias, batch norm, ReLU6           4x4
classifier     global average, dropout 0.2, linear layer to the classes

Width multiplier 1 and expansion 6 throughout. 2,236,682 parameters for 10 classes, 2,351,972 for
the 100 classes of CIFAR-100.
"""

from torch import Tensor, nn

STAGES = (
    # expansion, outputs, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution, batch norm and ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter channel by channel with 3x3, project back by a linear 1x1."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [_conv(inputs, hidden, 1)] if expansion > 1 else []
        layers += [_conv(hidden, hidden, 3, stride, groups=hidden)]
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch, plus the input where the shapes agree."""
        out: Tensor = self.layers(x)
        return x + out if self.has_shortcut else out


def _features(channels: int) -> nn.Sequential:
    """Return everything before the classifier."""
    layers: list[nn.Module] = [_conv(channels, 32, 3)]
    inputs = 32
    for expansion, outputs, blocks, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers += [InvertedResidual(inputs, outputs, stride, expansion)]
            inputs = outputs
    return nn.Sequential(*layers, _conv(inputs, 1280, 1))


def mobilenet_v2(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """MobileNet-V2 as read from the paper's description for CIFAR-100."""
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(_features(channels), pool, nn.Dropout(0.2), nn.Linear(1280, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return model
