"""What is known of a link stays known while both of its ends stay; compiled."""

from dystop.compiled import compiled
from dystop.sparse import Bools, Floats, Ints

Rows = tuple[Ints, Ints]  # (indptr, src ascending in a row)


@compiled
def carry_rows(
    old: Rows,
    values: tuple[Floats, Floats],
    new: Rows,
    still: Bools,
    rows: tuple[int, int],
    out: tuple[Floats, Floats, Bools],
) -> None:
    """Copy both values of links whose ends are `still` and take their flag off the third.

    Such a link is in both graphs, because its length did not change.
    """
    for i in range(rows[0], rows[1]):
        if not still[i]:
            continue
        at = old[0][i]
        for k in range(new[0][i], new[0][i + 1]):
            j = new[1][k]
            if still[j]:
                while old[1][at] < j:
                    at += 1
                out[0][k], out[1][k], out[2][k] = values[0][at], values[1][at], False
