"""`DATASETS`: the data sets that `load` knows by name, and the official files of some."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dystop.data.dataset import Dataset, Labels, labels_of
from dystop.registry import BuiltIn, Registry

Format = Literal["packaged", "idx", "cifar", "svhn"]


class DataSource(ABC):
    """A data set by name. Fields hold its parameters, as `dystop.param` declares them.

    Attributes `shape`, `classes`, `train` and `test`, as fields or properties, are shown in lists.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    licence: ClassVar[str] = "not stated"
    task: ClassVar[str] = "classification"
    class_names: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the data set of a seed."""

    def labels(self, seed: int) -> Labels:
        """Return the labels of its training samples; planning needs no more."""
        return labels_of(self.load(seed))

    def place(self, folders: Sequence[Path]) -> str:
        """Say where it would be loaded from now; empty: it is not on this machine."""
        return "included (generated)"

    def row(self) -> tuple[str, ...]:
        """Return name, shape, classes, sizes, task, licence and origin as text, for a table."""
        shape = " x ".join(map(str, getattr(self, "shape", ())))
        sizes = " / ".join(
            str(getattr(self, part)) for part in ("train", "test") if hasattr(self, part)
        )
        classes = str(getattr(self, "classes", ""))
        return self.name, shape, classes, sizes, self.task, self.licence, self.summary


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One official file: its name, address and digest."""

    name: str
    url: str
    digest: str  # "sha256:..." or "md5:..." of the file
    content_sha256: str | None = None  # of the uncompressed content
    unpacked: str = ""  # name of the unpacked folder, which may replace the file


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a data set that lies in files."""

    name: str
    shape: tuple[int, ...]  # channels, height, width; or tokens
    classes: int
    train: int
    test: int
    licence: str
    origin: str
    format: Format
    class_names: tuple[str, ...] = ()
    files: tuple[RemoteFile, ...] = ()
    folders: tuple[str, ...] = ()  # sub-folders in which other tools store it


_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

_CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_CIFAR100_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"


def _fashion(name: str, digest: str, content_sha256: str) -> RemoteFile:
    return RemoteFile(name, _FASHION + name, "sha256:" + digest, content_sha256)


_ENTRIES = (
    Entry(
        name="fmnist-mini",
        shape=(1, 28, 28), classes=10, train=10_000, test=2_000,
        licence="MIT",
        origin="the first images of every class of Fashion-MNIST; comes with dystop",
        format="packaged",
        class_names=_CLOTHES,
    ),
    Entry(
        name="fashion-mnist",
        shape=(1, 28, 28), classes=10, train=60_000, test=10_000,
        licence="MIT",
        origin="Zalando Research, github.com/zalandoresearch/fashion-mnist",
        format="idx",
        class_names=_CLOTHES,
        files=(
            _fashion(
                "train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            _fashion(
                "train-labels-idx1-ubyte.gz",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            _fashion(
                "t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            _fashion(
                "t10k-labels-idx1-ubyte.gz",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        folders=("FashionMNIST/raw",),
    ),
    Entry(
        name="cifar10",
        shape=(3, 32, 32), classes=10, train=50_000, test=10_000,
        licence="no formal licence; cite Krizhevsky 2009",
        origin="A. Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html",
        format="cifar",
        class_names=_CIFAR10_NAMES,
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                _CIFAR + "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                unpacked="cifar-10-batches-bin",
            ),
        ),
    ),
    Entry(
        name="cifar100",
        shape=(3, 32, 32), classes=100, train=50_000, test=10_000,
        licence="no formal licence; cite Krizhevsky 2009",
        origin="A. Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html (fine labels)",
        format="cifar",
        class_names=tuple(_CIFAR100_NAMES.split()),
        files=(
            RemoteFile(
                "cifar-100-binary.tar.gz",
                _CIFAR + "cifar-100-binary.tar.gz",
                "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                unpacked="cifar-100-binary",
            ),
        ),
    ),
    Entry(
        name="svhn",
        shape=(3, 32, 32), classes=10, train=73_257, test=26_032,
        licence="non-commercial use only",
        origin="Netzer et al. 2011, ufldl.stanford.edu/housenumbers (cropped digits)",
        format="svhn",
        files=(
            RemoteFile(
                "train_32x32.mat",
                _SVHN + "train_32x32.mat",
                "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            RemoteFile(
                "test_32x32.mat",
                _SVHN + "test_32x32.mat",
                "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
    ),
)  # fmt: skip

ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}

DATASETS: Registry[DataSource] = Registry(
    "data set",
    DataSource,
    "dystop.datasets",
    BuiltIn(
        {
            "fmnist-mini": "dystop.data.loading:FmnistMini",
            "fashion-mnist": "dystop.data.loading:FashionMnist",
            "cifar10": "dystop.data.loading:Cifar10",
            "cifar100": "dystop.data.loading:Cifar100",
            "svhn": "dystop.data.loading:Svhn",
            "synthetic": "dystop.data.generated.images:SyntheticImages",
            "generated-table": "dystop.data.generated.table:GeneratedTable",
            "generated-text": "dystop.data.generated.text:GeneratedText",
        }
    ),
)
