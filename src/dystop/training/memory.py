"""The memory that a run needs, the memory that is available, and the refusal of too large runs.

What the process holds already (program, libraries, data, buffers) is measured. What the run will
add is a sum of named parts. The project `benchmarks` compares the total with the measured peak.
"""

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dystop.errors import CapacityError
from dystop.training.flat import Layout

KEPT_COPIES = 6  # of the optimisers' state when everybody trains: stored, taken out and put back

WORKSPACE_BYTES = 2**25  # that a matrix library takes for each stream on which a graph is recorded


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The memory of one model."""

    width: int  # floats W
    counters: int  # integers C
    activation_bytes: int  # saved by autograd for one sample while training
    forward_bytes: int  # alive at once for one sample without autograd

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a stack of models."""
        return 4 * self.width + 8 * self.counters

    def pass_bytes(self, trained: int, evaluated: int) -> int:
        """Return the bytes of activations when so many samples are trained on, or evaluated."""
        return max(self.activation_bytes * trained, self.forward_bytes * evaluated)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The bytes of every part of a run, beside those held already."""

    parts: tuple[tuple[str, int], ...]
    held: int = 0

    def plus(self, name: str, size: int) -> "MemoryEstimate":
        """Return the estimate with another part."""
        return MemoryEstimate((*self.parts, (name, size)), self.held)

    @property
    def needed(self) -> int:
        """Bytes that the run will add to those held already."""
        return sum(size for _, size in self.parts)

    @property
    def total(self) -> int:
        """Bytes in use at the peak."""
        return self.held + self.needed

    def text(self) -> str:
        """Return the estimate as a table.

        >>> print(MemoryEstimate((("models", 3 * 2**20), ("training", 2**19)), 2**20).text())
        program and data   1.0 MiB
        models             3.0 MiB
        training         512.0 KiB
        total              4.5 MiB
        """
        rows = (("program and data", self.held), *self.parts, ("total", self.total))
        lines = [(name, human(size)) for name, size in rows]
        left = max(len(name) for name, _ in lines)
        right = max(len(size) for _, size in lines)
        return "\n".join(f"{name:<{left}} {size:>{right}}" for name, size in lines)


@dataclass(frozen=True)
class Workload:
    """What a trainer computes at the same time; it decides the memory of a run."""

    size: ModelSize
    device: torch.device
    executors: int  # threads of a CPU, or GPUs
    rows: int  # models that an executor trains together
    batch: int  # samples of a mini-batch
    tested_rows: int  # models that an executor evaluates together
    tested_batch: int  # samples that it evaluates together
    streams: int  # of a GPU that trains models one by one; 0: it trains them together
    has_kernels: bool  # whether a GPU trains with dystop's own kernels
    is_half: bool  # whether activations are bfloat16
    state_floats: int  # of the optimiser's state beside a model
    keeps_state: bool  # whether every worker keeps this state between trainings

    def estimate(self, workers: int, stacks: float) -> MemoryEstimate:
        """Estimate the memory of a run.

        Args:
            workers: Number of workers N.
            stacks: Stacks of models [N, W] that the simulator keeps or makes at once.
        """
        on_gpu = self.device.type == "cuda"
        training, evaluation = self._on_gpu(workers) if on_gpu else self._on_cpu(workers)
        at_once = min(self.executors * self.rows, workers)
        estimate = MemoryEstimate(
            (
                (f"models ({workers} workers)", int((stacks + 1) * workers * self.size.row_bytes)),
                (f"training ({at_once} at once)", training),
                ("evaluation", evaluation),
            ),
            held_bytes(self.device),
        )
        if not self.state_floats:
            return estimate
        # A mixed state is a part of the models.
        rows = KEPT_COPIES * workers if self.keeps_state else at_once
        return estimate.plus("optimiser state", 4 * self.state_floats * rows)

    def _on_cpu(self, workers: int) -> tuple[int, int]:
        """Return the bytes of training and of evaluation."""
        size, trained = self.size, min(self.executors * self.rows, workers)
        tested = min(self.executors * self.tested_rows, workers)
        training = trained * (3 * size.row_bytes + size.activation_bytes * self.batch)
        return training, tested * size.forward_bytes * self.tested_batch

    def _on_gpu(self, workers: int) -> tuple[int, int]:
        """Return the bytes of training and of evaluation, beside the existing buffers."""
        size = self.size
        if self.has_kernels:
            return 4 * workers * size.row_bytes + WORKSPACE_BYTES, WORKSPACE_BYTES
        # Activations and, for a short time, their gradients; bfloat16 halves both.
        width = 1 if self.is_half else 2
        rows = self.streams or min(self.rows, workers)
        training = rows * (width * size.activation_bytes * self.batch + 3 * size.row_bytes)
        tested = min(self.tested_rows, workers) * self.tested_batch
        return training, width * tested * size.forward_bytes // 2


def human(size: float) -> str:
    """Format a number of bytes.

    >>> human(1536), human(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def held_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Return the bytes in use now: by this process, or by torch on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    for line in _read(root / "proc/self/status").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def activation_bytes(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> int:
    """Measure the bytes that autograd saves for one sample, in a forward pass of two samples."""
    trial = copy.deepcopy(module).to("cpu")  # a GPU would have to load its libraries first
    own = {t.untyped_storage().data_ptr() for t in (*trial.parameters(), *trial.buffers())}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.zeros(2, *shape, dtype=dtype)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trial(x).sum()
    return sum(saved.values()) // 2


def forward_bytes(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> int:
    """Estimate the bytes alive at once in a forward pass of one sample without autograd.

    This is three times the largest layer output: a layer's input, its output and a shortcut.
    """
    trial = copy.deepcopy(module).to("cpu").eval()
    largest = 0

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.nbytes)

    for part in trial.modules():
        part.register_forward_hook(note)
    x = torch.zeros(2, *shape, dtype=dtype)
    with torch.no_grad():
        trial(x)
    return 3 * max(largest, x.nbytes) // 2


def model_size(
    module: nn.Module, layout: Layout, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> ModelSize:
    """Measure the memory of one model."""
    saved, alive = activation_bytes(module, shape, dtype), forward_bytes(module, shape, dtype)
    return ModelSize(layout.width, layout.counters, saved, alive)


def available_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Return the free bytes: on a CPU, the minimum of what the machine and the cgroups leave.

    Args:
        device: The device of the run.
        root: The folder that holds `proc` and `sys`.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_machine_bytes(root), *_cgroup_bytes(root)])


def _machine_bytes(root: Path) -> int:
    """Return the kernel's MemAvailable, or all physical memory on a system without /proc."""
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_bytes(root: Path) -> Iterator[int]:
    """Yield the free bytes of every control group that holds this process."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _free(root / "sys/fs/cgroup", path, ("memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _free(root / "sys/fs/cgroup/memory", path, names)


def _free(mount: Path, path: str, names: tuple[str, str]) -> Iterator[int]:
    """Yield limit minus use of a group and its parents; a container may show only the root."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        limit, used = (_read(folder / name).strip() for name in names)
        if limit.isdigit() and used.isdigit():
            yield max(0, int(limit) - int(used) + _reclaimable(folder))
        if folder == mount:
            return


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached file pages, which count as used but are freed on demand."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.strip().isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    """Return the text of a kernel file, or nothing if there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


ADVICE = (
    "use fewer workers, a smaller model, a smaller training.chunk, training.batch or "
    "training.evaluation_batch, or a device with more memory (training.device)"
)


def ensure_fits(
    estimate: MemoryEstimate, available: int, limit: int | None = None, advice: str = ADVICE
) -> None:
    """Refuse a run that does not fit.

    Args:
        estimate: The memory that the run needs.
        available: Free bytes, from `available_bytes`.
        limit: Total bytes that the user allows, including those held already.
        advice: What the user can change.

    Raises:
        CapacityError: The run does not fit; names the parts, the free memory and what to change.
    """
    usable = available if limit is None else min(available, max(0, limit - estimate.held))
    if estimate.needed <= usable:
        return
    if limit is not None and limit <= estimate.held:
        whole = human(estimate.held + estimate.needed)
        raise CapacityError(
            f"training.memory_limit_gb allows {human(limit)}, but the program and the data already "
            f"hold {human(estimate.held)}; the run needs {whole} in total"
        )
    allowed = "" if limit is None else f" (limit set to {human(limit)})"
    largest = max(estimate.parts, key=lambda part: part[1])[0]
    raise CapacityError(
        f"the run needs about {human(estimate.needed)} more memory, but only {human(usable)} "
        f"can be used{allowed}:\n{estimate.text()}\n"
        f"the largest part is '{largest}'; {advice}"
    )
