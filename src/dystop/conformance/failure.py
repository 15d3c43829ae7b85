"""How a mechanism fails: one error that says who, where and what."""

from dataclasses import dataclass
from typing import NoReturn

from dystop.types import Mechanism


class ConformanceError(AssertionError):
    """A mechanism does not do what every mechanism must do."""


@dataclass(frozen=True)
class Place:
    """Where a mechanism is being looked at, written so that it can be typed in again."""

    mechanism: Mechanism
    where: str  # as in "on random_view(17, 3)"

    def fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise the error."""
        name = getattr(self.mechanism, "name", type(self.mechanism).__name__)
        raise ConformanceError(f"mechanism {name!r} {self.where}: {what}") from cause

    def require(self, holds: object, what: str) -> None:
        """Raise the error unless something holds."""
        if not holds:
            self.fail(what)
