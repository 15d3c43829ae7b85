"""A generated table: correlated features, a class and a number for every row.

A small random network of the seed draws both from the features. So the classes and the numbers can
be learned, but not by a linear model alone.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from dystop.data.catalogue import DataSource
from dystop.data.dataset import Dataset, Splits, assemble
from dystop.params import param
from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints

_HIDDEN = 24  # units of the network that labels the rows
_USUAL = 1000  # rows that tell its mean and its deviation


@dataclass(frozen=True)
class GeneratedTable(DataSource):
    """A table whose size and noise are chosen."""

    name = "generated-table"
    summary = "features, classes and a number for 'regression', drawn from the seed; any size"
    licence = "none needed"

    train: Annotated[int, Ge(1)] = param(4000, "training rows")
    test: Annotated[int, Ge(1)] = param(1000, "test rows")
    features: Annotated[int, Ge(1)] = param(16, "features of a row")
    classes: Annotated[int, Ge(2)] = param(5, "number of classes")
    noise: Annotated[float, Ge(0)] = param(
        0.2, "standard deviation of the noise on class scores and numbers, which have deviation 1"
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a sample."""
        return self.features, 1, 1

    def load(self, seed: int) -> Dataset:
        """Generate the table of a seed."""
        return make_table(self, seed)


def make_table(params: GeneratedTable, seed: int) -> Dataset:
    """Generate the table of a seed: features [n, F], classes, and one number for each row."""
    x_train, y_train, train = _rows(params, params.train, seed, "train")
    x_test, y_test, test = _rows(params, params.test, seed, "test")
    made = assemble(
        "generated-table",
        Splits(x_train, y_train, x_test, y_test),
        classes=params.classes,
        source=f"generated from seed {seed}",
    )
    return replace(made, targets=(train, test))


def _rows(
    params: GeneratedTable, count: int, seed: int, split: str
) -> tuple[NDArray[np.float32], Ints, NDArray[np.float32]]:
    """Return features, classes and numbers of one split."""
    law, rng = stream(seed, "table", "law"), stream(seed, "table", split)
    features = params.features
    blend = law.standard_normal((features, features)) + 2 * np.eye(features)
    blend /= np.linalg.norm(blend, axis=1, keepdims=True)
    first = law.standard_normal((features, _HIDDEN)) / np.sqrt(features)
    last = law.standard_normal((_HIDDEN, params.classes + 1)) / np.sqrt(_HIDDEN)

    def scores(x: Floats) -> Floats:
        out: Floats = np.tanh(2 * x @ first) @ last
        return out

    usual = scores(law.standard_normal((_USUAL, features)) @ blend.T)
    x = rng.standard_normal((count, features)) @ blend.T
    drawn = (scores(x) - usual.mean(axis=0)) / usual.std(axis=0)
    drawn += params.noise * rng.standard_normal(drawn.shape)
    labels = ints(drawn[:, :-1].argmax(axis=1))
    return x.astype(np.float32), labels, drawn[:, -1:].astype(np.float32)
