import torch
from torch import nn
from torch.func import functional_call

from dystop.training.flat import layout_of
from dystop.training.models.build import build_model


class Odd(nn.Module):
    """Batch norm, a frozen parameter, a tied one and a boolean buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x):
        return self.norm(self.b(self.a(x))) * self.frozen * torch.where(self.mask, 1.0, 0.0)


def test_sizes_of_the_parts():
    layout = layout_of(Odd())
    assert layout.parameters == 16 + 4 + 4 + 8  # the tied weight counts once
    assert layout.width == layout.parameters + 4 + 8  # frozen, running mean and variance
    assert layout.counters == 4 + 1  # mask, num_batches_tracked
    assert layout.model_bytes == 4 * layout.width


def test_round_trip_and_order():
    module = Odd().eval()
    layout = layout_of(module)
    vector, counters = layout.flatten(module)
    assert vector.dtype == torch.float32
    assert counters.dtype == torch.int64
    assert vector.shape == (layout.width,)
    assert counters.shape == (layout.counters,)
    assert torch.equal(vector[:16], module.a.weight.detach().flatten())  # parameters first
    named = layout.unflatten(vector, counters)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        assert torch.equal(named[name], tensor)
        assert named[name].dtype == tensor.dtype
    x = torch.arange(12.0).view(3, 4)
    assert torch.equal(functional_call(module, named, (x,)), module(x))


def test_flatten_copies_and_unflatten_shares():
    module = nn.BatchNorm1d(3)
    layout = layout_of(module)
    vector, counters = layout.flatten(module)
    vector[0] = 9.0
    assert module.weight[0] == 1.0
    named = layout.unflatten(vector, counters)
    vector[1], counters[0] = 7.0, 4
    assert named["weight"].tolist() == [9.0, 7.0, 1.0]
    assert named["num_batches_tracked"] == 4
    functional_call(module.train(), named, (torch.arange(6.0).view(2, 3),))
    assert counters.tolist() == [5]  # counted in place, and not in the float vector
    assert vector[6:9].tolist() != [0.0, 0.0, 0.0]


def test_stack_of_models():
    module = build_model("resnet18", 1, (9, 9), 2, seed=0)
    layout = layout_of(module)
    vector, counters = layout.flatten(module)
    stack = torch.stack([vector, 2 * vector])
    named = layout.unflatten(stack, counters.repeat(2, 1))
    weight = module.stem[0].weight.detach()
    assert torch.equal(named["stem.0.weight"], torch.stack([weight, 2 * weight]))
    assert named["stem.1.num_batches_tracked"].shape == (2,)
    stack.zero_()
    assert named["fc.bias"].abs().sum() == 0


def test_no_counters():
    layout = layout_of(nn.Linear(2, 2))
    vector, counters = layout.flatten(nn.Linear(2, 2))
    assert counters.shape == (0,)
    assert set(layout.unflatten(vector, counters)) == {"weight", "bias"}
