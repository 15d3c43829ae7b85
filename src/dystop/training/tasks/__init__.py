"""Tasks: what models learn from samples, and how good they are at it.

task       `Task`: the loss, the score and the targets; and the tasks that come with dystop
catalogue  the tasks that are known by name, without loading torch
build      a task by its name, by an import path, or a user's own object
trial      one tiny batch through model and task, before the first round
"""
