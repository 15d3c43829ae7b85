"""Evaluation of all models on the test set: which models count, and what the record gets."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from dystop.control.aggregation import global_weights
from dystop.control.stopping import is_evaluation_due, is_over, next_evaluation_s
from dystop.simulator.model_stack import PendingScore, after_aggregation, published
from dystop.simulator.state import Components, State
from dystop.sparse import Ints, ints
from dystop.training.batch_norm import ALL_WORKERS
from dystop.training.device import upload
from dystop.training.evaluate import score_from, with_workers


def schedule_evaluation(components: Components, t: int, state: State) -> tuple[bool, State]:
    """Return whether an evaluation is due after round t, and the state that knows the next one.

    Planning only has no models to evaluate.
    """
    evaluate, clock_s, due_s = components.evaluate, state.control.clock_s, state.next_evaluation_s
    if not (components.engine.train and is_evaluation_due(evaluate, t, clock_s, due_s)):
        return False, state
    return True, state._replace(next_evaluation_s=next_evaluation_s(evaluate, clock_s))


def is_last(components: Components, t: int, clock_s: float) -> bool:
    """Return whether the run ends with a score after round t: no further one can open in time."""
    if not components.engine.train:
        return False
    stop, following = components.stop, t + 1
    return is_over(stop, following, clock_s) or is_over(
        stop, following, components.world.opening_s(following, clock_s)
    )


def request_score(components: Components, state: State) -> PendingScore:
    """Evaluate every worker's own model and the global one; do not wait for a device."""
    models, n = state.models, components.fleet.workers
    if components.evaluate.model == "aggregated":
        return score_of(components, aggregated_models(components, state), models.counters[:n])
    return models.trainings.evaluate(models, state.done, n, partial(score_of, components))


def aggregated_models(components: Components, state: State) -> Tensor:
    """Return the models as their last aggregations left them, [N, W]."""
    begun = state.progress.begun_by(state.control.clock_s)[: components.fleet.workers]
    return after_aggregation(state.models, state.done, state.control.version, begun)


def score_of(components: Components, models: Tensor, counters: Tensor) -> PendingScore:
    """Evaluate models [N, W] and their average; do not wait for a device.

    The workers that the exchange leaves out do not count.
    """
    samples, evaluate = components.evaluate.samples or None, components.trainer.evaluate
    whole_model, workers = global_model(components, models)[None], np.arange(len(models))
    whole_counters = counters[:1]
    if len(left_out := components.exchange.dishonest):
        workers = np.setdiff1d(workers, left_out)
        at = upload(workers, models.device)
        models, counters = models[at], counters[at]
    each = evaluate(models, counters, samples, batch_norm_owners(components, workers))
    together = batch_norm_owners(components, ints([ALL_WORKERS]))
    whole = evaluate(whole_model, whole_counters, samples, together)
    name, count = components.trainer.task.score_name, components.fleet.workers
    if not components.evaluate.per_worker:
        return lambda: score_from(each, whole, name)
    return lambda: with_workers(score_from(each, whole, name), each, workers, count)


def global_model(components: Components, models: Tensor) -> Tensor:
    """Return the average of all workers' models by data size, [W] (eq:weightedmodel).

    The workers that the exchange leaves out do not count.
    """
    size = components.fleet.data_size.copy()
    size[components.exchange.dishonest] = 0
    share = upload(global_weights(size), models.device).to(models.dtype)
    return share @ models


def batch_norm_owners(components: Components, workers: Ints) -> Ints | None:
    """Return on whose samples batch norm is recalibrated for an evaluation; None: it is not."""
    return workers if components.evaluate.statistics == "recomputed" else None


@dataclass(frozen=True)
class EvaluationModels:
    """The models that count at some time: those that an evaluation would test then."""

    models: Tensor  # [N, W]
    counters: Tensor  # [N, C]
    global_model: Tensor  # [W], eq:weightedmodel


def evaluation_models(components: Components, state: State) -> EvaluationModels:
    """Return the models that an evaluation between two rounds looks at."""
    n, stack = components.fleet.workers, state.models
    if components.evaluate.model == "aggregated":
        models = aggregated_models(components, state)
    else:
        stack.trainings.finish(np.arange(n))
        models = published(stack, state.done)[:n]
    return EvaluationModels(models, stack.counters[:n], global_model(components, models))
