import numpy as np
import pytest
import torch
from torch import nn

from dystop.errors import ConfigError, UserCodeError
from dystop.training.models.build import MODELS, build_for, build_model
from dystop.training.tasks.task import SampleKind


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tiny kernels on many threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def count(module):
    return sum(p.numel() for p in module.parameters())


def fire(inputs, squeezed, expanded):
    return inputs * squeezed + squeezed + 10 * squeezed * expanded + 2 * expanded


# SqueezeNet 1.0: eight fire modules, sum_f (i s + s + s e + e + 9 s e + e).
FIRES = sum(
    fire(*f)
    for f in [
        (96, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128),
        (256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256),
    ]
)  # fmt: skip


def inverted(inputs, outputs, expansion):
    hidden = inputs * expansion
    expand = inputs * hidden + 2 * hidden if expansion > 1 else 0
    return expand + 9 * hidden + 2 * hidden + hidden * outputs + 2 * outputs


def mobilenet(classes):
    """Stem 3x3x3x32 and its norm; the stages; 320 -> 1280 and its norm; the linear layer."""
    total, inputs = 3 * 9 * 32 + 64, 32
    for t, c, n in [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3),
                    (6, 320, 1)]:  # fmt: skip
        for _ in range(n):
            total, inputs = total + inverted(inputs, c, t), c
    return total + 320 * 1280 + 2 * 1280 + 1280 * classes + classes


def residual(inputs, outputs):
    """Two 3x3 convolutions and norms, and a 1x1 shortcut with a norm where the width changes."""
    shortcut = inputs * outputs + 2 * outputs if inputs != outputs else 0
    return 9 * inputs * outputs + 9 * outputs**2 + 4 * outputs + shortcut


RESNET = (3 * 9 * 64 + 2 * 64) + sum(
    residual(i, o) + residual(o, o) for i, o in [(64, 64), (64, 128), (128, 256), (256, 512)]
) + 512 * 10 + 10  # fmt: skip

COUNTS = [
    # conv 10(25+1), conv 20(250+1), 320x50+50, 50x10+10
    ("cnn", 1, (28, 28), 10, 21_840),
    # on 3x32x32: conv 10(75+1), the same second conv, 20x5x5 = 500 features
    ("cnn", 3, (32, 32), 10, 760 + 5_020 + 500 * 50 + 50 + 510),
    ("resnet18", 3, (32, 32), 10, 11_173_962),
    ("resnet18-gn", 3, (32, 32), 10, 11_173_962),
    ("squeezenet", 3, (32, 32), 10, (27 * 96 + 96) + FIRES + (512 * 10 + 10)),
    ("mobilenet-v2", 3, (32, 32), 10, 2_236_682),
    ("mobilenet-v2", 3, (32, 32), 100, 2_351_972),
    ("softmax", 1, (28, 28), 10, 784 * 10 + 10),
    ("mlp", 1, (28, 28), 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
]


def test_hand_formulas_match_the_published_numbers():
    # torchvision's SqueezeNet 1.0 has a 7x7 stem and 1000 classes: 1,248,424 parameters.
    assert (3 * 49 * 96 + 96) + FIRES + 513_000 == 1_248_424
    assert mobilenet(10) == 2_236_682
    assert mobilenet(100) == 2_351_972
    assert RESNET == 11_173_962


@pytest.mark.parametrize(("name", "channels", "size", "classes", "parameters"), COUNTS)
def test_parameters_and_output_shape(name, channels, size, classes, parameters):
    model = build_model(name, channels, size, classes, seed=0).eval()
    assert count(model) == parameters
    with torch.no_grad():
        assert model(torch.zeros(2, channels, *size)).shape == (2, classes)


@pytest.mark.parametrize("name", sorted(name for name in MODELS if not MODELS[name].tokens))
def test_smallest_input_trains_with_a_single_sample_and_one_less_is_refused(name):
    side = MODELS[name].minimal_side
    if side is None:
        assert build_model(name, 3, (7,), 4, seed=0)(torch.zeros(2, 3, 7)).shape == (2, 4)
        return
    assert build_model(name, 1, (side, side), 4, seed=0)(torch.zeros(1, 1, side, side)).shape
    for size in [(side - 1, 40), (784,)]:
        with pytest.raises(ConfigError, match=f"{name}.*at least {side}x{side}"):
            build_model(name, 1, size, 4, seed=0)


TEXT = SampleKind((7,), 3, tokens=11)


@pytest.mark.parametrize(
    ("name", "parameters"), [("transformer", 101_963), ("transformer-large", 1_785_419)]
)
def test_a_transformer_scores_every_token_or_a_whole_sample(name, parameters):
    model, x = build_for(name, TEXT, (7, 11), seed=0), torch.arange(14).view(2, 7) % 11
    assert count(model) == parameters
    scores = model(x)
    assert scores.shape == (2, 7, 11)
    changed = torch.cat([x[:, :-1], (x[:, -1:] + 1) % 11], 1)
    torch.testing.assert_close(model(changed)[:, :-1], scores[:, :-1])  # nobody sees what follows
    assert build_for(name, TEXT, (3,), seed=0)(x).shape == (2, 3)


def test_models_of_tokens_and_of_numbers_are_not_confused():
    with pytest.raises(
        ConfigError, match=r"'cnn' takes numbers.*token ids.*transformer.*convert it to float"
    ):
        build_for("cnn", TEXT, (3,), seed=0)
    with pytest.raises(ConfigError, match=r"'transformer' takes token ids.*numbers.*mlp"):
        build_model("transformer", 1, (4, 4), 3, seed=0)


def test_strides_of_mobilenet_are_the_documented_ones():
    features = build_model("mobilenet-v2", 3, (32, 32), 10, seed=0)[0]
    sides, x = [], torch.zeros(2, 3, 32, 32)
    for layer in features:
        x = layer(x)
        sides.append(x.shape[-1])
    assert sides == [32] * 4 + [16] * 3 + [8] * 7 + [4] * 5


def test_weights_depend_on_the_seed_alone_and_global_randomness_is_untouched():
    torch.rand(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, same, other = (build_model("cnn", 1, (28, 28), 10, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert torch.equal(one.conv1.weight, same.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"'resnet81'.*did you mean 'resnet18'.*allowed: cnn"):
        build_model("resnet81", 3, (32, 32), 10, seed=0)


OWN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, size, classes):
        super().__init__(nn.Flatten(), nn.Linear(size[0] * size[1], classes))

def everything(**given):
    assert sorted(given) == ["channels", "classes", "features", "size"]
    return Net(given["size"], given["classes"])

def wrong_shape(classes): return nn.Sequential(nn.Flatten(), nn.Linear(16, classes + 1))
def not_a_module(): return 3
def demanding(depth): return Net((4, 4), 2)
def fixed(): return nn.Flatten()
def crashes(size): return nn.Conv2d(1, 1, 9)
number = 4
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(OWN)
    (tmp_path / "broken_nets.py").write_text("import a_package_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["my_nets:Net", "my_nets:everything"])
def test_own_module_by_import_path(name):
    model = build_model(name, 1, (4, 4), 3, seed=5)
    assert isinstance(model, nn.Module)
    assert count(model) == 51
    again = build_model(name, 1, (4, 4), 3, seed=5)
    assert torch.equal(model[1].weight, again[1].weight)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_such_nets:Net", r"module 'no_such_nets' cannot be imported.*PYTHONPATH.*expected"),
        ("my_nets:Nut", r"no callable 'Nut'.*expected 'package.module:factory'"),
        ("my_nets:number", r"no callable 'number'"),
        (":Net", r"not an import path"),
        ("my_nets:not_a_module", r"returned a int"),
        ("my_nets:demanding", r"could not be built: TypeError.*depth.*channels, size="),
        ("my_nets:fixed", r"no trainable parameter"),
        ("my_nets:crashes", r"fails on a batch of shape \(2, 1, 4, 4\)"),
        ("my_nets:wrong_shape", r"into \(2, 4\); expected .*\(2, 3\)"),
    ],
)
def test_wrong_own_module_is_named(name, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        build_model(name, 1, (4, 4), 3, seed=0)
    assert repr(name) in str(caught.value)


@pytest.mark.usefixtures("own")
def test_an_error_in_ones_own_module_is_blamed_on_its_line():
    with pytest.raises(UserCodeError, match=r"broken_nets\.py:1: ModuleNotFoundError.*nobody_has"):
        build_model("broken_nets:Net", 1, (4, 4), 3, seed=0)
