"""Data sets, and their partition over workers.

`load` returns a data set by name, `take` a stratified subset, `partition` the samples of every
worker.

loading      `load`: where a data set is searched, and which reader reads it
catalogue    the data sets that are known by name
fetch        files of a data set: search and download
readers      the official file formats (IDX, CIFAR, SVHN)
npz          data sets in one .npz file
fmnist_mini  the data set that comes with dystop
generated    images, text and a table from a seed
dataset      `Dataset` and `Labels`, checks, stratified subsets
partition    which worker has which sample: the choice of a scheme, and its description
schemes      the schemes: IID, Dirichlet, sizes, shards, groups
assignment   a partition as a file
importing    `import_data`: folders of images, tables and objects of other libraries
table_files  CSV and Parquet files
private      data that stay on a worker's host
"""

from dystop.data.assignment import fingerprint, owners_of, read_assignment, write_assignment
from dystop.data.catalogue import DATASETS, ENTRIES, DataSource, Entry, RemoteFile
from dystop.data.dataset import Dataset, Labels, kept_samples, labels_of, take, take_labels
from dystop.data.generated.images import SyntheticImages, make_synthetic, synthetic_labels
from dystop.data.loading import load, load_entry
from dystop.data.partition import (
    PartitionParams,
    PartitionSummary,
    Scheme,
    describe_partition,
    emd_to_global,
    label_chart,
    label_counts,
    owners,
    partition,
    scheme_of,
    shards_of,
    split_counts,
)

__all__ = [
    "DATASETS",
    "ENTRIES",
    "DataSource",
    "Dataset",
    "Entry",
    "Labels",
    "PartitionParams",
    "PartitionSummary",
    "RemoteFile",
    "Scheme",
    "SyntheticImages",
    "describe_partition",
    "emd_to_global",
    "fingerprint",
    "kept_samples",
    "label_chart",
    "label_counts",
    "labels_of",
    "load",
    "load_entry",
    "make_synthetic",
    "owners",
    "owners_of",
    "partition",
    "read_assignment",
    "scheme_of",
    "shards_of",
    "split_counts",
    "synthetic_labels",
    "take",
    "take_labels",
    "write_assignment",
]
