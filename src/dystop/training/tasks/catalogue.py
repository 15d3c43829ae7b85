"""What tasks there are, without loading torch: `dystop.training.tasks.build` makes them."""

from typing import TYPE_CHECKING

from dystop.registry import BuiltIn, Registry

if TYPE_CHECKING:
    from dystop.training.tasks.task import Task

AUTO = "auto"  # the task that the data set is made for
OWN_MODEL = "task"  # in place of a model's name: the usual one for the task and the samples

TASKS: "Registry[Task]" = Registry(
    "task",
    "dystop.training.tasks.task:Task",
    "dystop.tasks",
    BuiltIn(
        {
            "classification": "dystop.training.tasks.task:Classification",
            "next-token": "dystop.training.tasks.task:NextToken",
            "regression": "dystop.training.tasks.task:Regression",
        }
    ),
)
