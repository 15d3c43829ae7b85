"""The choice of a device."""

import pytest
import torch

from dystop.errors import ConfigError
from dystop.training.device import pick_device


def test_unknown_and_missing_devices_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="tpu"):
        pick_device("tpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="cuda:3"):
        pick_device("cuda:3")


def test_a_gpu_that_refuses_the_process_is_named_before_anything_is_built(monkeypatch):
    """A server of MPS that has no place left answers with this error."""

    def refuse(*_, **__):
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "empty", refuse)
    for name in ("cuda", "auto"):
        with pytest.raises(ConfigError, match="busy or unavailable") as caught:
            pick_device(name)
        assert repr(name) in str(caught.value)
        assert "MPS" in str(caught.value)
