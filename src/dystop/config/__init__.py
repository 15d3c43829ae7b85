"""The configuration of an experiment.

`experiment` declares what can be set. `read` turns a TOML file and `key=value` words into an
`Experiment`; `write` turns an `Experiment` back into TOML. Reading what was written gives an equal
`Experiment`.
"""

from dystop.config.experiment import Experiment, every_key, resolve
from dystop.config.read import as_replay, read_again, read_experiment
from dystop.config.write import to_toml, to_tree

__all__ = [
    "Experiment",
    "as_replay",
    "every_key",
    "read_again",
    "read_experiment",
    "resolve",
    "to_toml",
    "to_tree",
]
