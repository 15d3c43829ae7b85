"""Random regular graphs."""

import networkx as nx

from dystop.sparse import Ints, ints


def regular_pairs(n: int, degree: int, seed: int) -> Ints:
    """Pairs of any random regular graph, [E, 2]; a dense one as what a sparse one leaves free.

    Drawing a dense graph by itself would go wrong, and start again, almost every time.

    >>> len(regular_pairs(6, 4, seed=0))
    12
    """
    if 2 * degree < n:
        edges = nx.random_regular_graph(degree, n, seed=seed).edges
    else:
        edges = nx.complement(nx.random_regular_graph(n - 1 - degree, n, seed=seed)).edges
    return ints(list(edges)).reshape(-1, 2)
