"""Data sets of other libraries in Python: `torch.utils.data.Dataset` and Hugging Face `datasets`.

Neither library is imported: an object is known by what it can do. Nothing is downloaded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.importing.images import Size, to_array
from dystop.errors import DataError


def is_table_object(source: object) -> bool:
    """Return whether this is a data set of Hugging Face, with named columns."""
    return hasattr(source, "column_names") and hasattr(source, "features")


def is_pairs(source: object) -> bool:
    """Return whether this is a data set of torch, which gives pairs of input and target."""
    return hasattr(source, "__getitem__") and not isinstance(source, (str, bytes, Mapping))


def columns_of(where: str, source: Any, size: Size | None) -> dict[str, NDArray[Any]]:
    """Return the columns of a Hugging Face data set; a column of images as bytes [n, C, H, W].

    A column of classes is one of their names.
    """
    plain = source.with_format(None)
    return {
        name: _column(where, name, plain.features[name], list(plain[name]), size)
        for name in plain.column_names
    }


def _column(
    where: str, name: str, feature: Any, values: list[Any], size: Size | None
) -> NDArray[Any]:
    kind = type(feature).__name__
    if kind == "Image":
        return to_array([(f"{where}: {name} {k}", v) for k, v in enumerate(values)], size)
    if kind == "ClassLabel":
        return np.array([feature.names[value] for value in values], np.str_)
    if any(value is None for value in values):
        is_text = any(isinstance(value, str) for value in values)
        values = [("" if is_text else np.nan) if value is None else value for value in values]
    try:
        return np.array(values)
    except ValueError:
        raise DataError(
            f"{where}: column {name!r} holds lists of different lengths; leave it out with drop="
        ) from None


def class_names_of(source: Any, target: str) -> tuple[str, ...]:
    """Return the names of the classes in their own order; empty if the column has none."""
    names = getattr(source.features.get(target), "names", None)
    return tuple(names or ())


def pairs_of(where: str, source: Any, size: Size | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and targets of a torch data set: [n, ...] and [n].

    Raises:
        DataError: An item is no pair of an array (or an image of Pillow) and a number.
    """
    inputs, targets = [], []
    for k in range(len(source)):
        item = source[k]
        if not isinstance(item, Sequence) or len(item) != 2:
            raise DataError(
                f"{where}: item {k} is a {type(item).__name__}; expected a pair of input and target"
            )
        inputs.append(item[0])
        targets.append(item[1])
    if not inputs:
        raise DataError(f"{where}: the data set is empty")
    y = np.array([np.asarray(target).item() for target in targets])
    return _stacked(where, inputs, size), y


def _stacked(where: str, inputs: list[Any], size: Size | None) -> NDArray[Any]:
    """Return all inputs as one array; the first that has another shape is named."""
    if hasattr(inputs[0], "convert"):  # images of Pillow
        return to_array([(f"{where}: item {k}", image) for k, image in enumerate(inputs)], size)
    arrays = [np.asarray(value) for value in inputs]
    for k, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise DataError(
                f"{where}: item {k} has shape {array.shape}, item 0 {arrays[0].shape}; all samples"
                " need the same"
            )
    return np.stack(arrays)
