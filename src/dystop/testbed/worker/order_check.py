"""Which orders a worker can execute; all others are refused before anything changes."""

from dystop.testbed.protocol.messages import Execute, Row, Stage

MAX_WEIGHT = 1e3
MAX_RATE = 1e6
MAX_STEPS = 10**9
MAX_ROUND = 10**12  # no run has more; the rounds behind a checkpoint stay far from overflow


def order_problem(order: Execute, *, deltas: bool) -> str:
    """Return why an order cannot be executed; empty: it can.

    Args:
        order: The order.
        deltas: Whether the worker keeps the starts of trainings, which rows of updates need.
    """
    if order.round > MAX_ROUND:
        return f"a round above {MAX_ROUND}"
    if not 0 <= order.rate <= MAX_RATE or order.steps > MAX_STEPS:
        return f"rate {order.rate} or {order.steps} steps"
    problems = (_stage_problem(stage, deltas=deltas) for stage in order.stages)
    return next(filter(None, problems), "")


def _stage_problem(stage: Stage, *, deltas: bool) -> str:
    nodes, row = [pull.node for pull in stage.pulls], stage.row
    if len(set(nodes)) < len(nodes):
        return "a stage pulls twice from one node"
    mask = row.mask if row is not None and row.kind == "masked" else None
    for pull in stage.pulls:
        if pull.mask is not None and (pull.mask != mask or pull.into == "mail" or pull.background):
            return "a pull has another mask than its row"
    return "" if row is None else _row_problem(row, deltas=deltas)


def _row_problem(row: Row, *, deltas: bool) -> str:
    if len(row.sources) != len(row.weights) or len(set(row.sources)) < len(row.sources):
        return "sources and weights of a row do not match"
    if any(abs(weight) > MAX_WEIGHT for weight in row.weights):
        return f"a weight above {MAX_WEIGHT:g}"
    return "a row of updates, but none are kept" if row.kind == "delta" and not deltas else ""
