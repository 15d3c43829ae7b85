"""ResNet-18 for small images: a 3x3 stem of stride 1 and no max-pooling, as usual for CIFAR.

11,173,962 parameters for 3 channels and 10 classes, with batch norm or with group norm alike.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    """Group norm of 32 groups: no running statistics, no coupling between samples."""
    return nn.GroupNorm(32, channels)


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """Convolution that keeps the side (divided by the stride); the norm behind it has the bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, 3, stride), norm(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs, 3, 1), norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Residual branch plus shortcut."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Four stages of two basic blocks, 64 to 512 channels, global average, one linear layer."""

    def __init__(self, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(channels, 64, 3, 1), norm(64), nn.ReLU())
        blocks: list[nn.Module] = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(inputs, outputs, stride, norm)]
            blocks += [BasicBlock(outputs, outputs, 1, norm)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        out: Tensor = self.fc(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def resnet18(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with batch norm, the paper's model for CIFAR-10."""
    return ResNet18(channels, classes, nn.BatchNorm2d)


def resnet18_gn(channels: int, size: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with group norm: nothing but parameters to mix."""
    return ResNet18(channels, classes, group_norm)
