import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import write as toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
lists = st.lists(scalars, max_size=3) | st.lists(st.lists(st.integers(), max_size=2), max_size=2)
trees = st.recursive(
    st.dictionaries(texts, scalars | lists, max_size=4),
    lambda inner: st.dictionaries(texts, scalars | inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(trees)
def test_what_is_written_reads_back_equal(tree):
    assert tomllib.loads(toml.dumps(tree)) == tree


def test_not_a_number_reads_back():
    assert math.isnan(tomllib.loads(toml.dumps({"x": math.nan}))["x"])


def test_floats_keep_their_type_and_bits():
    back = tomllib.loads(toml.dumps({"a": 5.0, "b": 1e-13, "c": 1e16, "d": -0.0}))
    assert [repr(x) for x in back.values()] == ["5.0", "1e-13", "1e+16", "-0.0"]


def test_tables_inside_lists_are_written_inline():
    assert toml.dumps({"a": [{"b": 1}]}) == "a = [{b = 1}]\n"


@pytest.mark.parametrize("value", [None, object(), {1, 2}])
def test_what_toml_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="TOML cannot hold"):
        toml.dumps({"a": value})
