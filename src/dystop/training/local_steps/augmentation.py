"""Data augmentation of images: random crops out of a black border, and horizontal flips.

Every image of a mini-batch is moved by random bits with an address of their own: worker, local
training, step and place in the mini-batch. So simulator and testbed, a resumed run, stacks and
single models, CPU and GPU move the same image in the same way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dystop.errors import ConfigError
from dystop.training.params import AugmentParams
from dystop.training.randomness import device_fold_in

_ADDRESS = 2**32  # a part of the address that no dropout layer has
_FIELD = 20  # bits of a word from which one offset is drawn


@dataclass(frozen=True)
class Augmentation:
    """Moves of images: where their upper left corner is cut, and whether they are mirrored."""

    params: AugmentParams

    @property
    def is_on(self) -> bool:
        """Whether images are moved at all."""
        return bool(self.params.crop or self.params.flip)

    def moves(self, address: Tensor, batch: int) -> Tensor:
        """Return the moves of the images of mini-batches, [..., batch, 3]: y, x and flip.

        Args:
            address: Random addresses of the mini-batches, [...] int64.
            batch: Images of a mini-batch.
        """
        place = torch.arange(batch, device=address.device)
        words = device_fold_in(device_fold_in(address, _ADDRESS)[..., None], place)
        drawn = [(words >> shift) & (2**_FIELD - 1) for shift in (0, _FIELD, 2 * _FIELD)]
        sides = 2 * self.params.crop + 1, 2 * self.params.crop + 1, 1 + self.params.flip
        return torch.stack([d * n >> _FIELD for d, n in zip(drawn, sides, strict=True)], -1)

    def moved(self, images: Tensor, moves: Tensor) -> Tensor:
        """Return images [n, C, H, W] after their moves [n, 3]; what lies outside is 0."""
        height, width = images.shape[2:]
        y, x, flip = moves.unsqueeze(-1).unbind(1)
        rows = torch.arange(height, device=images.device) + (y - self.params.crop)
        columns = torch.arange(width, device=images.device)
        columns = torch.where(flip > 0, width - 1 - columns, columns) + (x - self.params.crop)
        inside = _is_inside(rows, height)[:, :, None] & _is_inside(columns, width)[:, None, :]
        place = rows.clamp(0, height - 1)[:, :, None] * width
        place = (place + columns.clamp(0, width - 1)[:, None, :]).flatten(1)[:, None]
        taken = images.flatten(2).gather(2, place.expand(-1, images.shape[1], -1))
        return torch.where(inside[:, None], taken.view(images.shape), 0)


def _is_inside(positions: Tensor, size: int) -> Tensor:
    return (positions >= 0) & (positions < size)


NO_AUGMENTATION = Augmentation(AugmentParams())


def augmentation_of(
    params: AugmentParams, shape: tuple[int, ...], dtype: torch.dtype
) -> Augmentation:
    """Return the augmentation of samples of this shape; refuse samples that are no images."""
    made = Augmentation(params)
    sides = list(shape[1:]) if len(shape) == 3 and dtype.is_floating_point else []
    if made.is_on and min(sides, default=0) < 2:
        raise ConfigError(
            f"training.augment moves images [channels, height, width]; a sample of this data set "
            f"has the shape {list(shape)}: leave training.augment.crop and .flip out"
        )
    if made.is_on and params.crop >= min(sides):
        raise ConfigError(
            f"training.augment.crop = {params.crop}: images of {sides[0]} x {sides[1]} would be "
            f"moved out of sight; use at most {min(sides) - 1}, usually 4"
        )
    return made
