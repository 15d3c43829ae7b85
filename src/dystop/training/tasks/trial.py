"""A trial of a task: one tiny batch through the model and the task, before the first round."""

import torch
from torch import Tensor, nn

from dystop.errors import UserCodeError
from dystop.training.randomness import preserve_generators
from dystop.training.samples import Samples
from dystop.training.tasks.build import task_name
from dystop.training.tasks.task import Task
from dystop.user_code import blamed, choose, summary

TRIAL_SAMPLES = 6  # at most; a number of them that no axis of the outputs has
_EXPECTED = {
    "losses": "a loss for every sample, floats of shape ({size},). A loss of torch needs "
    'reduction="none"; several numbers of a sample are averaged, as in .mean(1)',
    "loss": "the mean loss of the batch, a float of shape ()",
    "measures": "m numbers for every sample, shape ({size}, m), as in right[:, None]",
    "score": "a score for each row of means, shape (1,), as in means[..., 0]",
}


def try_task(task: Task, module: nn.Module, samples: Samples) -> None:
    """Refuse a task that nobody can train or test with.

    Args:
        task: What is learned.
        module: The initial model; it is not changed.
        samples: Samples with their targets, on the CPU.

    Raises:
        UserCodeError: A method of the task fails, or returns a wrong type or shape.
    """
    choose(type(task).__module__)
    outputs, targets = _tiny_batch(module, samples)
    size = len(targets)
    for method, shape in (("losses", (size,)), ("loss", ())):
        found = _result(task, method, outputs, targets)
        if not found.is_floating_point() or found.shape != shape:
            raise _wrong(task, method, f"{found.dtype} of shape {tuple(found.shape)}", size)
        if not found.requires_grad:
            raise _wrong(task, method, "a tensor that does not depend on the outputs", size)
    measures = _result(task, "measures", outputs.detach(), targets)
    if measures.ndim != 2 or len(measures) != size:
        raise _wrong(task, "measures", f"shape {tuple(measures.shape)}", size)
    score = _result(task, "score", measures.sum(0, keepdim=True, dtype=torch.float64) / size)
    if score.shape != (1,):
        raise _wrong(task, "score", f"shape {tuple(score.shape)}", size)


def _tiny_batch(module: nn.Module, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of a few samples; no other axis is as long as their number."""
    was_training, index = module.training, torch.arange(TRIAL_SAMPLES) % len(samples)
    with torch.no_grad(), preserve_generators(torch.device("cpu")):
        x, targets = samples.take(index)
        outputs: Tensor = module.eval()(x).float()
    module.train(was_training)
    size = next(n for n in range(3, TRIAL_SAMPLES + 1) if n not in outputs.shape[1:])
    return outputs[:size].requires_grad_(), targets[:size]


def _result(task: Task, method: str, *given: Tensor) -> Tensor:
    """Return what a method of a task makes of these tensors, if it is a tensor."""
    try:
        found = getattr(task, method)(*given)
    except Exception as error:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in given)
        raise blamed(error) or UserCodeError(
            f"task = {task_name(task)!r}: {method} fails on tensors of shape {shapes}: "
            f"{summary(error)}"
        ) from error
    if not isinstance(found, Tensor):
        raise _wrong(task, method, f"a {type(found).__name__}, which is no tensor", len(given[0]))
    return found


def _wrong(task: Task, method: str, wrong: str, size: int) -> UserCodeError:
    return UserCodeError(
        f"task = {task_name(task)!r}: {method} returned {wrong} for a batch of {size} samples; "
        f"expected {_EXPECTED[method].format(size=size)}"
    )
