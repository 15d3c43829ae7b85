"""Trainers that take the place of `dystop.training.trainer.Trainer`.

flower         a Flower `ClientApp` trains, in a process of its own
flower_child   that process; it imports nothing of dystop
no_training    planning only: nothing is trained
"""
