"""What tasks there are, without loading torch: `dystop.training.tasks.build` makes them."""

from dataclasses import dataclass

AUTO = "auto"  # the task that the data set is made for
OWN_MODEL = "task"  # in place of a model's name: the usual one for the task and the samples


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One line of `dystop list tasks`."""

    task: str  # class in `dystop.training.tasks.task`
    score: str  # name of the score, of which more is better
    meaning: str


TASKS: dict[str, TaskEntry] = {
    "classification": TaskEntry(
        "Classification",
        "accuracy",
        "one class for each sample (images, tables or token ids); cross-entropy",
    ),
    "next-token": TaskEntry(
        "NextToken",
        "accuracy",
        "the token that follows each token of a text; cross-entropy",
    ),
    "regression": TaskEntry("Regression", "r2", "numbers for each sample; mean squared error"),
}
