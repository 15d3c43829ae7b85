"""A folder of images, with a sub-folder for each class."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.readers import check_memory, refusal
from dystop.errors import DataError
from dystop.foreign_files import open_regular
from dystop.sparse import Ints, ints

Size = tuple[int, int]  # height, width

ENDINGS = (
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # not EPS, which starts a program
_GREY, _WIDE = ("1", "L", "LA"), ("I", "F")  # modes of Pillow; those of more than 8 bits begin so
_ADVICE = "Replace or remove the file"
_PIXEL_BYTES = 10  # of the decoded image, its colours and their place in the array, at worst


def class_folders(folder: Path) -> list[Path]:
    """Return the sub-folders of a folder that hold images, by name."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in inside if any(_files(path))]


def read_folders(
    folders: Sequence[Path], classes: Sequence[str], size: Size | None
) -> tuple[NDArray[np.uint8], list[Ints]]:
    """Read all images of some folders: [n, C, H, W], and the classes of each folder's images.

    Args:
        folders: Each holds a folder for each class, with images at any depth.
        classes: Names of the class folders.
        size: Height and width to which images are scaled; None: all must have the same.

    Raises:
        DataError: A file is no image, or images have different sizes.
    """
    files = [[list(_files(folder / name)) for name in classes] for folder in folders]
    every = [path for folder in files for inside in folder for path in inside]
    _check_pixels(every, size)
    labels = [ints(np.repeat(np.arange(len(classes)), [*map(len, folder)])) for folder in files]
    return to_array([(str(path), _open(path, size)) for path in every], size), labels


def _files(folder: Path) -> Iterator[Path]:
    """Yield the image files below a folder, by name."""
    if folder.is_dir():
        yield from sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS)


def _check_pixels(files: Sequence[Path], size: Size | None) -> None:
    """Refuse images that do not fit into memory, by what their headers say; decode none."""
    pixels = [math.prod(_open(path, load=False).size) for path in files]
    kept = sum(pixels) if size is None else math.prod(size) * len(files) + max(pixels, default=0)
    todo = "Import fewer images, or scale them with --size HEIGHTxWIDTH (size= in Python)"
    check_memory(files[0].parent, f"{len(files):,} images", kept * _PIXEL_BYTES, todo)


def _open(path: Path, size: Size | None = None, *, load: bool = True) -> Any:
    """Read an image, and scale it to a size; without `load`, read its header only."""
    from PIL import Image, UnidentifiedImageError

    try:
        with open_regular(path, follow=True) as file, Image.open(file, formats=_FORMATS) as image:
            if load:
                image.load()
            return image if size is None else image.resize((size[1], size[0]))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, UnidentifiedImageError):
            why = "its content is no known kind of image"
        raise refusal(path, f"cannot be read: {why or error}", "an image", _ADVICE) from error


def to_array(images: Sequence[tuple[str, Any]], size: Size | None) -> NDArray[np.uint8]:
    """Return images of Pillow as bytes [n, C, H, W]: grey if all are grey, otherwise colours.

    Args:
        images: Name and image.
        size: Height and width to which they are scaled; None: all must have the same.
    """
    mode = "L" if all(image.mode in _GREY for _, image in images) else "RGB"
    first, *_ = images
    out = []
    for name, image in images:
        if image.mode.startswith(_WIDE):
            raise DataError(f"{name}: the image has more than 8 bits per pixel; convert it to 8")
        if size is not None:
            image = image.resize((size[1], size[0]))
        elif image.size != first[1].size:
            wrong, usual = (f"{w} x {h}" for w, h in (image.size, first[1].size))
            raise DataError(
                f"{name}: the image has {wrong} pixels, but {first[0]} has {usual}; all need the"
                " same; --size HEIGHTxWIDTH (size= in Python) scales them"
            )
        pixels = np.asarray(image.convert(mode), np.uint8)
        out.append(pixels[None] if mode == "L" else pixels.transpose(2, 0, 1))
    return np.stack(out)
