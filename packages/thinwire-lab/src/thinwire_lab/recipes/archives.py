"""Readers of the files image data sets come in: IDX, CIFAR-10's two archives, and npz.

They end in arrays of bytes, checked once for all formats. A file that is not what its name says gives one
`RecipeError` with the file, the rule it breaks and what to do.
"""

import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from thinwire_lab.recipes.errors import RecipeError

Array = NDArray[Any]
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
IDX_FILES = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
DAMAGE = (EOFError, OSError, ValueError, KeyError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True, kw_only=True)
class RawImages:
    """What a file holds: pixels as bytes [count, height, width, channels] and labels [count]."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: tuple[str, ...]


def read_images(path: Path) -> RawImages:
    """The image data set at this path, whichever of the known formats it has."""
    if path.is_dir():
        if _idx_file(path, IDX_FILES["train_x"]) is not None:
            return _checked(path, _read_idx_folder(path))
        return _checked(path, _read_cifar(path, _files_of_folder(path)))
    if not path.is_file():
        raise RecipeError(f"{path} does not exist: looked for an .npz file, a CIFAR-10 archive or a folder of either.")
    if path.suffix == ".npz":
        return _checked(path, read_npz(path, path.read_bytes()))
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return _checked(path, _read_cifar(path, _files_of_tar(path)))
    raise RecipeError(f"{path} is of no known kind: an image data set is an .npz, a .tar.gz of CIFAR-10, or a folder.")


def read_npz(path: Path, content: bytes) -> RawImages:
    """Arrays x_train, y_train, x_test, y_test and, if there, class_names."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            split = [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    except DAMAGE as reason:
        _malformed(path, f"an .npz of images holds the arrays x_train, y_train, x_test and y_test ({reason})")
    names = arrays.get("class_names")
    highest = max((int(y.max()) for y in (split[1], split[3]) if y.size and y.dtype.kind in "iu"), default=0)
    classes = tuple(map(str, names if names is not None else range(highest + 1)))
    return RawImages(train_x=split[0], train_y=split[1], test_x=split[2], test_y=split[3], classes=classes)


def _malformed(path: Path, rule: str) -> NoReturn:
    raise RecipeError(f"{path} is damaged or of another kind: {rule}; get the file again.") from None


def _checked(path: Path, raw: RawImages) -> RawImages:
    for x, y in ((raw.train_x, raw.train_y), (raw.test_x, raw.test_y)):
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size:
            _malformed(path, f"images are bytes [count, height, width(, channels)], not {x.dtype} {list(x.shape)}")
        if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
            _malformed(path, f"{len(x)} images need as many whole-number labels, not {y.dtype} {list(y.shape)}")
        if y.min() < 0 or y.max() >= len(raw.classes):
            _malformed(path, f"labels go from 0 to {len(raw.classes) - 1}, not from {y.min()} to {y.max()}")
    if raw.train_x.shape[1:] != raw.test_x.shape[1:]:
        _malformed(
            path, f"training images {raw.train_x.shape[1:]} and test images {raw.test_x.shape[1:]} differ in size"
        )
    return raw


# IDX: two zero bytes, the type (8: bytes), the number of dimensions, their sizes as big-endian words, the data.


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(path: Path) -> Array:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"it starts with {content[:3].hex()}, not 000008")
        dimensions = content[3]
        sizes = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
        data: Array = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return np.reshape(data, sizes)
    except (*DAMAGE, IndexError) as reason:
        _malformed(path, f"an IDX file of bytes has a header and as much data as it announces ({reason})")


def _read_idx_folder(folder: Path) -> RawImages:
    arrays: dict[str, Array] = {}
    for part, name in IDX_FILES.items():
        path = _idx_file(folder, name)
        if path is None:
            raise RecipeError(f"{folder} is incomplete: looked for {name} and {name}.gz.")
        arrays[part] = _read_idx(path)
    return RawImages(**arrays, classes=FASHION)


# CIFAR-10: five training files and a test file, as pickles of the python archive or as records of the binary one.


def _files_of_folder(folder: Path) -> Mapping[str, bytes]:
    places = [folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"]
    found = [file for place in places if place.is_dir() for file in place.iterdir() if _is_cifar_file(file.name)]
    return {file.name: file.read_bytes() for file in found if file.is_file()}


def _files_of_tar(path: Path) -> Mapping[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if _is_cifar_file(name) else None
                if content is not None:
                    files[name] = content.read()
    except DAMAGE as reason:
        _malformed(path, f"it cannot be read as a tar archive ({reason})")
    return files


def _is_cifar_file(name: str) -> bool:
    return name.removesuffix(".bin") in (*CIFAR_TRAIN, "test_batch")


def _read_cifar(path: Path, files: Mapping[str, bytes]) -> RawImages:
    ending = "" if "test_batch" in files else ".bin"
    missing = [name + ending for name in (*CIFAR_TRAIN, "test_batch") if name + ending not in files]
    if missing:
        raise RecipeError(
            f"{path} holds no known image data set: looked for {IDX_FILES['train_x']}[.gz] (IDX) and for the files of"
            f" CIFAR-10, of which {', '.join(missing)} are missing."
        )
    read: Callable[[Path, bytes], tuple[Array, Array]] = _read_cifar_records if ending else _read_cifar_pickle
    parts = [read(path / (name + ending), files[name + ending]) for name in CIFAR_TRAIN]
    test_x, test_y = read(path / ("test_batch" + ending), files["test_batch" + ending])
    train_x, train_y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return RawImages(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, classes=CIFAR)


def _planes_to_pixels(planes: Array) -> Array:  # [count, 3072] -> [count, 32, 32, 3]
    return np.transpose(np.reshape(planes, (-1, 3, 32, 32)), (0, 2, 3, 1))


def _read_cifar_records(path: Path, content: bytes) -> tuple[Array, Array]:
    if not content or len(content) % 3073:
        _malformed(path, f"a record of CIFAR-10 has 3073 bytes, which does not divide {len(content)}")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return _planes_to_pixels(records[:, 1:]), records[:, 0]


def _read_cifar_pickle(path: Path, content: bytes) -> tuple[Array, Array]:
    try:
        batch = _HarmlessUnpickler(io.BytesIO(content), encoding="bytes").load()
        planes = batch[b"data"] if b"data" in batch else batch["data"]
        labels = batch[b"labels"] if b"labels" in batch else batch["labels"]
        return _planes_to_pixels(planes.as_bytes_array()), np.array(labels, dtype=np.int64)
    except Exception as reason:  # a crafted pickle can raise anything; nothing of it was executed
        _malformed(path, f"a batch of CIFAR-10 is a pickle of bytes 'data' [count, 3072] and 'labels' ({reason})")


class _PickledType:
    """Stands in for numpy.dtype: only remembers the name of the type."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """The byte order and alignment of a type; bytes have neither."""


class _PickledArray:
    """Stands in for numpy.ndarray: only remembers shape and content, so that no pickle reaches numpy's own code."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def as_bytes_array(self) -> Array:
        _version, shape, kind, column_major, content = self.state
        if kind.name != "u1" or column_major:
            raise ValueError(f"data is {kind.name}, not row-major bytes")
        return np.reshape(np.frombuffer(content, np.uint8), shape)


def _encode_latin1(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


class _HarmlessUnpickler(pickle.Unpickler):
    """Reads lists, numbers, strings and arrays; a pickle that names anything else is refused."""

    ALLOWED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
        ("_codecs", "encode"): _encode_latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.ALLOWED[module, name]
