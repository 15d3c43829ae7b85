"""The environment of a run: versions, device, threads, memory and disk.

Every run records it, and `dystop doctor` shows it. Only `device` imports torch, so that the other
functions stay fast.
"""

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import dystop

PACKAGES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "matplotlib")


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a result: dystop, Python, libraries."""
    found = {"dystop": dystop.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def threads() -> int:
    """Return the number of CPU threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """Return a description of the device that torch would train on."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)})"
    return f"cpu ({platform.machine()}, {threads()} threads)"


def machine() -> dict[str, str | int]:
    """Return the description of this machine that `run.json` records."""
    return {"platform": platform.platform(), "machine": platform.machine(), "threads": threads()}


def memory_bytes() -> int:
    """Return the physical memory of this machine; the limit of a container may be lower."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_disk_bytes(folder: Path) -> int:
    """Return the free disk space at this folder, which need not exist yet."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def writable(folder: Path) -> bool:
    """Return whether this folder is writable or, if it does not exist yet, can be created."""
    folder = folder.absolute()
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
