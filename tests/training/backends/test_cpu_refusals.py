"""Networks that the CPU kernels cannot train, and the reasons that are given."""

import pytest
from torch import nn

from dystop.training.backend_choice import why_not_fused
from dystop.training.flat import layout_of
from dystop.training.models.build import build_model


def with_hook():
    net = nn.Sequential(nn.Flatten(), nn.Linear(81, 3))
    net[1].register_forward_hook(lambda *_: None)
    return net


SHARED = nn.Linear(81, 81)
REFUSED = [
    (nn.Sequential(nn.Flatten(), nn.Linear(81, 3), nn.Tanh()), "'2' (Tanh) has no kernel"),
    (nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(81, 3)), "'1' (Dropout)"),
    (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "'1' (BatchNorm2d)"),
    (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), "groups, dilation"),
    (nn.Sequential(nn.Conv2d(1, 2, 3, padding_mode="circular", padding=1)), "other than zeros"),
    (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")), "padding = 'same'"),
    (nn.Sequential(nn.Conv2d(2, 2, 3)), "is given 1 channels"),
    (nn.Sequential(nn.Conv2d(1, 2, 10)), "window larger than its input of (9, 9)"),
    (nn.Sequential(nn.Flatten(), nn.Conv2d(1, 2, 3)), "after the images have been flattened"),
    (nn.Sequential(nn.MaxPool2d(2, padding=1)), "ceil_mode"),
    (nn.Sequential(nn.AvgPool2d(2, ceil_mode=True)), "ceil_mode"),
    (nn.Sequential(nn.Linear(9, 3)), "not 9 features"),
    (nn.Sequential(nn.Flatten(2), nn.Linear(81, 3)), "does not flatten whole samples"),
    (nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(81, 3)), "before any layer with weights"),
    (nn.Sequential(nn.Flatten(), SHARED, SHARED), "shares its weights"),
    (nn.Sequential(nn.Conv2d(1, 2, 3)), "one score for each class"),
    (nn.Sequential(nn.Flatten()), "one score for each class"),
    (with_hook(), "'1' (Linear) has hooks"),
    (build_model("resnet18-gn", 1, (9, 9), 3, seed=0), "has no kernel"),
]


@pytest.mark.parametrize(("net", "why"), REFUSED)
def test_refusals_say_why(net, why):
    assert why in str(why_not_fused(net, layout_of(net), (1, 9, 9)))
