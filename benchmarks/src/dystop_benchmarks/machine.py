"""What the numbers were measured on: processor, memory, accelerator, versions."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dystop.folders import environment


def facts(device: torch.device) -> dict[str, Any]:
    """Return machine and versions, as the JSON file holds them."""
    return {"machine": machine(device), "versions": versions()}


def machine(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, memory, and the accelerator if one is used."""
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": environment.threads(),
        "memory_bytes": environment.memory_bytes(),
        "load": _load(),
        "platform": platform.platform(),
        "device": str(device),
        "torch_threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {"gpu": about.name, "gpu_memory_bytes": about.total_memory}
        found |= {"gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return found


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a speed."""
    return {**environment.versions(), "numba": metadata.version("numba")}


def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor."""
    try:
        lines = info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _load() -> float:
    """Return how many processes wanted a core over the last minute; above 0 others were at work."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def describe(found: dict[str, Any]) -> str:
    """Return the machine in one line.

    >>> describe({"cpu": "X", "cores": 2, "memory_bytes": 8 * 10**9, "device": "cpu"})
    'X, 2 cores, 8.0 GB, device cpu'
    """
    parts = [found["cpu"], f"{found['cores']} cores", f"{found['memory_bytes'] / 1e9:.1f} GB"]
    if "gpu" in found:
        parts += [found["gpu"], f"{found['gpu_memory_bytes'] / 1e9:.0f} GB"]
    return ", ".join([*parts, f"device {found['device']}"])
