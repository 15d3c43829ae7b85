"""Make a task: one of the catalogue by its name, or a user's own."""

import math
import re
from dataclasses import fields
from typing import Any

from dystop.errors import ConfigError, nearest
from dystop.record import ACCURACY, Evaluated, RoundRecord
from dystop.training.tasks.catalogue import AUTO, TASKS
from dystop.training.tasks.task import Task
from dystop.user_code import blamed, import_object, summary

EXPECTED = (
    "expected 'package.module:Task', where Task is a class without arguments that inherits from "
    "dystop.Task"
)

_REQUIRED = ("losses", "measures")  # methods that a task of one's own must have


def make_task(name: str, inferred: str, folder: str = "") -> Task:
    """Return a task by its name, or by the import path of a user's own.

    Args:
        name: A key of `TASKS`, "package.module:Task", or "auto".
        inferred: The task that the data set is made for, for "auto".
        folder: Where the module of an import path lies; empty: where Python finds it.

    >>> make_task("auto", "regression").score_name
    'r2'
    """
    name = inferred if name == AUTO else name
    if ":" in name:
        return _own(name, import_object("task", name, folder, EXPECTED))
    if name not in TASKS:
        raise ConfigError(
            f"task = {name!r} is not known{nearest(name, TASKS)}; allowed: {', '.join(TASKS)}, "
            "or 'package.module:Task' for a task of your own"
        )
    made = TASKS[name]()
    return made if name in TASKS.built_in else checked(made)


def task_name(task: Task) -> str:
    """Return the name of a task; that of a user's own is its import path.

    >>> task_name(make_task("regression", ""))
    'regression'
    """
    kind: Any = type(task)
    name = getattr(kind, "name", "")
    known = name in TASKS and TASKS[name] is kind
    return name if known else f"{kind.__module__}:{kind.__qualname__}"


def _own(path: str, factory: Any) -> Task:
    try:
        made = factory()
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"task = {path!r} could not be made: {summary(error)}; {EXPECTED}"
        ) from error
    if not isinstance(made, Task):
        raise ConfigError(f"task = {path!r} is a {type(made).__name__}; {EXPECTED}")
    return checked(made)


def checked(task: Task) -> Task:
    """Return a user's own task if it can learn, and records can hold its score under its name."""
    missing = [name for name in _REQUIRED if getattr(type(task), name) is getattr(Task, name)]
    if missing:
        raise ConfigError(
            f"task = {task_name(task)!r} has no {' and no '.join(missing)}; a task of your own "
            "defines them, or inherits from dystop.Classification, NextToken or Regression"
        )
    name = task.score_name
    taken = {f.name for f in (*fields(RoundRecord), *fields(Evaluated))} - {ACCURACY}
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name) or name in taken:
        raise ConfigError(
            f"task = {task_name(task)!r}: score_name = {name!r}; expected a word of lower-case "
            "letters, digits and _ that is no other field of a record, as in 'r2'"
        )
    if isinstance(task.least_loss, bool) or not isinstance(task.least_loss, int | float):
        raise ConfigError(
            f"task = {task_name(task)!r}: least_loss = {task.least_loss!r}; expected a number, or "
            "nothing where the loss has no least value"
        )
    if math.isnan(task.least_loss):
        raise ConfigError(f"task = {task_name(task)!r}: least_loss is not a number; leave it out")
    return task
