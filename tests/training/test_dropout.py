"""Dropout with an address."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dystop.rng import bits, fold_in, unit
from dystop.training.randomness import AddressedDropout, address_names, with_addresses


def dropped(layer: AddressedDropout, x: Tensor, word: int) -> Tensor:
    out: Tensor = functional_call(layer, {"address": torch.tensor(word)}, (x,))
    return out


def test_by_hand():
    """Which numbers fall out is what `dystop.rng` says of their addresses."""
    word = bits(3, "dropout", 5, 7).astype(np.int64)
    layer, x = AddressedDropout(0.25, number=2), torch.ones(4, 5)
    out = dropped(layer, x, int(word))
    share = unit(fold_in(fold_in(np.uint64(word.astype(np.uint64)), 2), np.arange(20)))
    expected = np.where(share < 0.25, 0, 1 / 0.75).reshape(4, 5)
    np.testing.assert_allclose(out.numpy(), expected)


def test_a_share_falls_out_and_the_mean_stays():
    layer, x = AddressedDropout(0.3, 0), torch.ones(200, 500)
    first, second = dropped(layer, x, 1), dropped(layer, x, 2)
    assert abs((first == 0).float().mean().item() - 0.3) < 0.01
    assert abs(first.mean().item() - 1) < 0.01
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert abs(both - 0.09) < 0.01  # another address, other numbers


def test_the_gradient_passes_where_the_number_did():
    x = torch.ones(30, requires_grad=True)
    out = dropped(AddressedDropout(0.5, 0), x, 9)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_ends(share, expected):
    assert (dropped(AddressedDropout(share, 0), torch.ones(9), 4) == expected).all()


def test_nothing_falls_out_of_a_test():
    x = torch.rand(9)
    assert torch.equal(dropped(AddressedDropout(0.5, 0).eval(), x, 4), x)


def test_a_shorter_batch_loses_the_same_numbers():
    x = torch.ones(8, 6)
    layer = AddressedDropout(0.5, 0)
    assert torch.equal(dropped(layer, x, 4)[:3], dropped(layer, x[:3], 4))


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.last, self.fc = nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.fc(self.drop(x))))


def test_only_layers_that_are_used_once_take_an_address():
    state = torch.get_rng_state()
    made = with_addresses(Twice(), (9,))
    assert type(made.drop) is nn.Dropout
    assert address_names(made) == ("last.address",)
    plain = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2)))
    made = with_addresses(plain, (3,))
    assert [layer.number for layer in made[1]] == [0, 1]
    assert [layer.p for layer in made[1]] == [0.1, 0.2]
    assert type(plain[1][0]) is nn.Dropout  # the user's own module stays
    assert not [name for name in made.state_dict() if "address" in name]
    torch.set_rng_state(state)
