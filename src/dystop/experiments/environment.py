"""What a run stands on: versions, device, threads, memory and disk.

Recorded with every run and shown by `dystop doctor`. Nothing here imports torch unless asked for
the device, so that looking is cheap.
"""

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import dystop

PACKAGES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "matplotlib")


def versions() -> dict[str, str]:
    """Versions of everything that can change a number: dystop, Python and the libraries."""
    found = {"dystop": dystop.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def threads() -> int:
    """CPU threads that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> str:
    """The device that torch would train on, in words."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)})"
    return f"cpu ({platform.machine()}, {threads()} threads)"


def machine() -> dict[str, str | int]:
    """What the run stands on, as recorded in `run.json`."""
    return {"platform": platform.platform(), "machine": platform.machine(), "threads": threads()}


def memory_bytes() -> int:
    """Memory built into this machine; a container may be allowed less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_disk_bytes(folder: Path) -> int:
    """Free space where this folder is, or would be."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def writable(folder: Path) -> bool:
    """Whether files could be made in this folder, or the folder itself if it is not there yet."""
    folder = folder.absolute()
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
