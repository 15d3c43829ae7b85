"""Data sets and how they are split over workers.

`load` finds a set by name, `take` cuts it to size, `partition` deals it out.
"""

from dystop.data.catalogue import DATASETS, Entry, RemoteFile
from dystop.data.dataset import Dataset, take
from dystop.data.load import load, load_entry
from dystop.data.partition import (
    PartitionSummary,
    Scheme,
    describe_partition,
    emd_to_global,
    label_chart,
    label_counts,
    partition,
    scheme_for,
)
from dystop.data.synthetic import SyntheticParams, make_synthetic

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "PartitionSummary",
    "RemoteFile",
    "Scheme",
    "SyntheticParams",
    "describe_partition",
    "emd_to_global",
    "label_chart",
    "label_counts",
    "load",
    "load_entry",
    "make_synthetic",
    "partition",
    "scheme_for",
    "take",
]
