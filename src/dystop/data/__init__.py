"""Data sets, and their partition over workers.

`load` returns a data set by name, `take` a stratified subset, `partition` the samples of every
worker.

loading      `load`: where a data set is searched, and which reader reads it
catalogue    the data sets that are known by name
fetch        files of a data set: search and download
readers      the official file formats (IDX, CIFAR, SVHN)
npz          data sets in one .npz file
fmnist_mini  the data set that comes with dystop
synthetic    generated images
dataset      `Dataset` and `Labels`, checks, stratified subsets
partition    IID and Dirichlet partitions
private      data that stay on a worker's host
"""

from dystop.data.catalogue import DATASETS, Entry, RemoteFile
from dystop.data.dataset import Dataset, Labels, labels_of, take, take_labels
from dystop.data.loading import load, load_entry, load_labels
from dystop.data.partition import (
    PartitionSummary,
    Scheme,
    describe_partition,
    emd_to_global,
    label_chart,
    label_counts,
    partition,
    scheme_for,
    split_counts,
)
from dystop.data.synthetic import SyntheticParams, make_synthetic

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "Labels",
    "PartitionSummary",
    "RemoteFile",
    "Scheme",
    "SyntheticParams",
    "describe_partition",
    "emd_to_global",
    "label_chart",
    "label_counts",
    "labels_of",
    "load",
    "load_entry",
    "load_labels",
    "make_synthetic",
    "partition",
    "scheme_for",
    "split_counts",
    "take",
    "take_labels",
]
