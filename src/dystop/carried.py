"""Vectors that a mechanism keeps for every worker beside its model.

A mechanism declares them (`Capabilities.carries`) and fills up to three places, which are pure and
elementwise, so that they take the arrays of one worker as well as stacks of many: `after_mixing`,
`correction` and `after_training` of `dystop.types.Mechanism`.

A vector that travels follows the model in the flat vector that is mixed, sent and stored, and costs
bytes like it. One that stays at home follows the integers of the model, as the bits of int64: they
are stored with the model, and never mixed or sent.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from dystop.types import Mechanism

MODEL = "model"
"""The name of the trained parameters among the vectors of a worker."""

Values = Mapping[str, Any]
"""Vectors of a worker by name, [..., width] each: arrays of NumPy or tensors of torch."""

Rows = Literal["model", "own", "home"]

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Carried:
    """A vector beside the model.

    `rows` says how it is mixed. "model": by the rows of the model. "own": by weights of its own
    (`Mix.carried`). "home": not at all; it is not sent.
    """

    name: str
    rows: Rows = "model"
    width: int | Literal["model"] = "model"  # numbers; "model": as many as trained parameters
    first: float | Literal["model"] = 0.0  # its numbers at time 0; "model": those of the model

    def numbers(self, parameters: int) -> int:
        """Return how many numbers it has beside a model of so many trained parameters."""
        return parameters if self.width == MODEL else int(self.width)

    def words(self, parameters: int) -> int:
        """Return how many integers of 64 bits hold its numbers.

        >>> Carried("momentum", "home", width=3).words(100)
        2
        """
        return -(-self.numbers(parameters) // 2)


@dataclass(frozen=True)
class Places:
    """Where model and carried vectors lie in a flat vector [..., W] and its integers [..., C]."""

    parameters: int
    columns: Mapping[str, slice] = field(default_factory=dict)  # of those that travel
    words: Mapping[str, tuple[slice, int]] = field(default_factory=dict)  # at home, and their width
    own: tuple[slice, ...] = ()  # columns that are mixed by weights of their own

    def values(self, vector: Any, counters: Any) -> dict[str, Any]:
        """Return views of the model and of all carried vectors."""
        found = {MODEL: vector[..., : self.parameters]}
        found |= {name: vector[..., at] for name, at in self.columns.items()}
        for name, (at, width) in self.words.items():
            found[name] = counters[..., at].view(vector.dtype)[..., :width]
        return found

    def write(self, vector: Any, counters: Any, values: Values) -> None:
        """Write some of these vectors in place."""
        views = self.values(vector, counters)
        for name, value in values.items():
            views[name][...] = value


@dataclass(frozen=True)
class Carrying:
    """The mechanism that carries vectors, and where they lie."""

    mechanism: "Mechanism"
    places: Places

    def after_mixing(self, own: tuple[A, B], mixed: tuple[A, B], dt: A) -> tuple[A, B]:
        """Return vector and counters after the mechanism has changed what was mixed.

        Args:
            own: Vector and counters of the worker before the round.
            mixed: The same after all stages of mixing.
            dt: Seconds since the last round of the worker opened.
        """
        before, after = self.places.values(*own), self.places.values(*mixed)
        vector, counters = deepcopy(mixed)
        self.places.write(vector, counters, self.mechanism.after_mixing(before, after, dt))
        return vector, counters


def places_of(carries: Sequence[Carried], parameters: int, width: int, counters: int) -> Places:
    """Return where carried vectors lie behind a vector of `width` numbers and its counters.

    >>> carries = (Carried("weight", "own", width=1, first=1.0), Carried("start", "home"))
    >>> places = places_of(carries, parameters=3, width=4, counters=0)
    >>> places.columns["weight"], places.words["start"], places.own
    (slice(4, 5, None), (slice(0, 2, None), 3), (slice(4, 5, None),))
    """
    columns, words, own = {}, {}, []
    for one in carries:
        numbers = one.numbers(parameters)
        if one.rows == "home":
            end = counters + one.words(parameters)
            words[one.name], counters = (slice(counters, end), numbers), end
            continue
        columns[one.name] = slice(width, width + numbers)
        own += [columns[one.name]] * (one.rows == "own")
        width += numbers
    return Places(parameters, columns, words, tuple(own))
