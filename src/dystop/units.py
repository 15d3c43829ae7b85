"""Numbers as text: with a unit and three significant digits."""

import math
from collections.abc import Iterable
from typing import Any

NOTHING = "–"


def known(value: Any) -> float | None:
    """Return the value as a float, or None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def number(value: float | None) -> str:
    """Return a number with three significant digits and grouped thousands.

    >>> number(1234.56), number(2.3456), number(0), number(None)
    ('1,235', '2.35', '0', '–')
    """
    if value is None:
        return NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits(value)}f}"


def plural(count: int, what: str) -> str:
    """Return a count and its noun, in the plural where needed.

    >>> plural(1, "line"), plural(2000, "round")
    ('1 line', '2,000 rounds')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def are(count: int, what: str) -> str:
    """Return a count, its noun and the matching form of "to be".

    >>> are(1, "round"), are(2, "round")
    ('1 round is', '2 rounds are')
    """
    return f"{plural(count, what)} {'is' if count == 1 else 'are'}"


def digits(value: float) -> int:
    """Return the number of decimals that gives three significant digits.

    >>> digits(1234.5), digits(2.3), digits(0.0123), digits(0.0)
    (0, 2, 4, 0)
    """
    return max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0


def seconds(value: float | None) -> str:
    """Return seconds as text; from 10,000 s on, also in hours.

    >>> seconds(0.1234), seconds(812.4), seconds(36000)
    ('0.123 s', '812 s', '36,000 s (10 h)')
    """
    if value is None:
        return NOTHING
    hours = f" ({number(value / 3600)} h)" if value >= 10_000 else ""
    return f"{number(value)} s{hours}"


def data(value: float | None) -> str:
    """Return bytes as text in decimal units.

    >>> data(950), data(87_360), data(3_743_000_000_000)
    ('950 B', '87.4 kB', '3.74 TB')
    """
    if value is None:
        return NOTHING
    scale, unit = data_unit(value)
    return f"{number(value / scale)} {unit}"


def data_unit(largest: float) -> tuple[float, str]:
    """Return scale and name of the decimal unit that suits a number of bytes."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= scale:
            return scale, unit
    return 1.0, "B"


def energy(value: float | None) -> str:
    """Return joules as text in decimal units.

    >>> energy(25), energy(87_360), energy(None)
    ('25 J', '87.4 kJ', '–')
    """
    if value is None:
        return NOTHING
    scale, unit = energy_unit(value)
    return f"{number(value / scale)} {unit}"


def energy_unit(largest_j: float) -> tuple[float, str]:
    """Return scale and name of the decimal unit that suits a number of joules."""
    for scale, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if largest_j >= scale:
            return scale, unit
    return 1.0, "J"


def time_unit(largest_s: float) -> tuple[float, str]:
    """Return scale and name of the unit for a time axis that ends at `largest_s`."""
    return (3600.0, "h") if largest_s >= 20_000 else (1.0, "s")


def listed(parts: Iterable[str]) -> str:
    """Return parts as an enumeration.

    >>> listed("a"), listed("ab"), listed("abc")
    ('a', 'a and b', 'a, b and c')
    """
    *begin, last = parts
    return f"{', '.join(begin)} and {last}" if begin else last


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.8125), percent(0.8, 0), percent(None)
    ('81.2 %', '80 %', '–')
    """
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def goal(target: float) -> str:
    """Return a target accuracy as a percentage, with a decimal only if it has one.

    >>> goal(0.8), goal(0.825)
    ('80 %', '82.5 %')
    """
    return percent(target, 0 if round(100 * target, 6).is_integer() else 1)


def spread(mean: float | None, std: float | None) -> str:
    """Return mean and standard deviation of a share, in percent.

    >>> spread(0.8125, 0.0123), spread(0.5, None)
    ('81.2 ± 1.2 %', '50.0 %')
    """
    if mean is None or std is None:
        return percent(mean)
    return f"{100 * mean:.1f} ± {100 * std:.1f} %"
