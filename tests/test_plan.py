"""Links and mix stages of a plan."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.plan import join_links, links, mix_of, no_links
from dystop.sparse import ints
from support.strategies import dst_src

quick = settings(derandomize=True, deadline=None, max_examples=150)


def test_links_of_several_kinds():
    some = links(ints([0, 1]), ints([1, 2]), fraction=0.5, background=True)
    more = links(ints([2]), ints([0]), stage=1, delta=True, pushed=True)
    both = join_links([some, more])
    assert len(both) == 3
    assert both.stage.tolist() == [0, 0, 1]
    assert both.fraction.tolist() == [0.5, 0.5, 1.0]
    assert both.delta.tolist() == both.pushed.tolist() == [False, False, True]
    assert both.background.tolist() == [True, True, False]
    assert both.take(ints([2, 0])).dst.tolist() == [2, 0]
    assert len(join_links([])) == len(no_links()) == 0


def test_stages_and_payers_of_links():
    pulls, pushes = (
        links(ints([0, 1]), ints([1, 2])),
        links(ints([2]), ints([0]), stage=2, pushed=True),
    )
    assert (pulls.stages, pulls.at_stage(0), pulls.at_stage(1).tolist()) == ([0], slice(None), [])
    assert pulls.payer.tolist() == [0, 1]
    both = join_links([pushes, pulls])
    assert both.stages == [0, 2]
    assert (both.at_stage(0).tolist(), both.at_stage(2).tolist()) == ([1, 2], [0])
    assert both.payer.tolist() == [0, 0, 1]  # a push is charged to its sender
    assert no_links().stages == []


@quick
@given(st.data(), st.integers(1, 5))
def test_mix_keeps_every_triple_and_sorts_rows(data, n):
    every = [(i, j) for i in range(n) for j in range(n)]
    chosen = data.draw(st.lists(st.sampled_from(every), unique=True))
    weight = {p: float(k) for k, p in enumerate(chosen)}
    rows = mix_of(*dst_src(chosen), np.array([weight[p] for p in chosen]))
    triples = zip(rows.dst.tolist(), rows.source.tolist(), rows.weight.tolist(), strict=True)
    assert list(triples) == [(i, j, weight[i, j]) for i, j in sorted(chosen)]
    assert rows.receiver.tolist() == sorted({i for i, _ in chosen})
    assert len(rows.indptr) == len(rows.receiver) + 1
    assert rows.receiver[rows.row_of].tolist() == rows.dst.tolist()
