"""Every format gives the same images back; a file that is missing or damaged gives one clear sentence."""

import gzip
import io
import lzma
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from thinwire_lab.recipes import RecipeError, load_images, load_text
from thinwire_lab.recipes import data as data_module
from thinwire_lab.recipes.archives import Array, read_images

RANDOM = np.random.default_rng(5)
GREY = RANDOM.integers(0, 256, (12, 28, 28), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


def idx(array: Array) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_folder(folder: Path, pack: Callable[[bytes], bytes] = bytes, ending: str = "") -> Path:
    for name, images in (("train", GREY[:8]), ("t10k", GREY[8:])):
        labels = LABELS[:8] if name == "train" else LABELS[8:]
        (folder / f"{name}-images-idx3-ubyte{ending}").write_bytes(pack(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte{ending}").write_bytes(pack(idx(labels)))
    return folder


def cifar_files(*, binary: bool) -> dict[str, bytes]:
    """Two images in each of the six files, the last two for tests."""
    files = {}
    for index, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        planes = COLOUR[2 * index : 2 * index + 2].transpose(0, 3, 1, 2).reshape(2, 3072)
        labels = LABELS[2 * index : 2 * index + 2]
        if binary:
            files[name + ".bin"] = np.hstack([labels[:, None], planes]).tobytes()
        else:
            files[name] = pickle.dumps({b"data": planes.copy(), b"labels": labels.tolist()}, protocol=2)
    return files


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_npz(path: Path, **changed: Array) -> Path:
    arrays = {"x_train": COLOUR[:10], "y_train": LABELS[:10], "x_test": COLOUR[10:], "y_test": LABELS[10:]}
    np.savez(path, **{**arrays, **changed})  # type: ignore[arg-type]
    return path


def test_the_packaged_subset_is_balanced_normalised_and_small() -> None:
    images = load_images()
    assert images.train_x.shape == (8400, 1, 28, 28)
    assert images.test_x.shape == (2000, 1, 28, 28)
    assert images.train_y.bincount().tolist() == [840] * 10
    assert images.test_y.bincount().tolist() == [200] * 10
    assert images.classes[0] == "T-shirt/top"
    torch.testing.assert_close(images.train_x.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.train_x.std(), torch.tensor(1.0), atol=1e-4, rtol=0)
    folder = Path(data_module.__file__).parent / "data"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 4_000_000
    assert "Zalando" in (folder / "FASHION-MNIST-LICENSE.txt").read_text()


@pytest.mark.parametrize(("pack", "ending"), [(bytes, ""), (gzip.compress, ".gz")])
def test_idx_files_plain_and_compressed(tmp_path: Path, pack: Callable[[bytes], bytes], ending: str) -> None:
    raw = read_images(write_idx_folder(tmp_path, pack, ending))
    np.testing.assert_array_equal(raw.train_x, GREY[:8])
    np.testing.assert_array_equal(raw.test_x, GREY[8:])
    np.testing.assert_array_equal(raw.test_y, LABELS[8:])


def test_debians_folder_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "DEBIAN_FASHION", write_idx_folder(tmp_path))
    assert load_images("fashion").train_x.shape == (8, 1, 28, 28)
    monkeypatch.setattr(data_module, "DEBIAN_FASHION", tmp_path / "nowhere")
    with pytest.raises(RecipeError, match=r"looked for in .*nowhere.*dataset-fashion-mnist"):
        load_images("fashion")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("place", ["folder", "subfolder", "archive"])
def test_cifar_in_all_its_forms(tmp_path: Path, binary: bool, place: str) -> None:
    files = cifar_files(binary=binary)
    subfolder = "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    if place == "archive":
        path = write_tar(tmp_path / "cifar.tar.gz", files)
    else:
        write_folder(tmp_path / subfolder, files)
        path = tmp_path if place == "subfolder" else tmp_path / subfolder
    raw = read_images(path)
    np.testing.assert_array_equal(raw.train_x, COLOUR[:10])
    np.testing.assert_array_equal(raw.train_y, LABELS[:10])
    np.testing.assert_array_equal(raw.test_x, COLOUR[10:])
    assert raw.classes[3] == "cat"


def test_npz_is_normalised_by_channel(tmp_path: Path) -> None:
    images = load_images(write_npz(tmp_path / "set.npz"))
    expected = torch.from_numpy(COLOUR[:10]).permute(0, 3, 1, 2).double()
    expected = (expected - expected.mean((0, 2, 3), keepdim=True)) / expected.std((0, 2, 3), keepdim=True)
    torch.testing.assert_close(images.train_x.double(), expected, atol=1e-5, rtol=1e-5)
    assert images.train_x.is_contiguous()
    assert images.train_y.tolist() == LABELS[:10].tolist()
    assert images.model_options() == {"shape": (3, 32, 32), "classes": 10}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x_train": COLOUR[:10].astype(np.float32)}, "images are bytes"),
        ({"y_train": LABELS[:9]}, "10 images need as many"),
        ({"y_test": np.array([0.5, 1.0])}, "whole-number labels"),
        ({"y_train": np.array([-1] * 10)}, "labels go from 0"),
        ({"x_test": COLOUR[10:, :16]}, "differ in size"),
        ({"x_train": np.array([object()])}, "x_train, y_train, x_test and y_test"),
    ],
)
def test_npz_with_unfit_arrays_is_refused(tmp_path: Path, changed: dict[str, Array], sentence: str) -> None:
    with pytest.raises(RecipeError, match=rf"set\.npz is damaged or of another kind: .*{sentence}"):
        load_images(write_npz(tmp_path / "set.npz", **changed))


def test_damaged_files_give_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "short.npz").write_bytes(b"PK\3\4")
    (tmp_path / "short.tar.gz").write_bytes(gzip.compress(b"not a tar")[:-3])
    folder = write_idx_folder(tmp_path)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS)[:-1])
    for path in (tmp_path / "short.npz", tmp_path / "short.tar.gz", folder):
        with pytest.raises(RecipeError, match=r"is damaged or of another kind: .*; get the file again\.$"):
            load_images(path)


def test_incomplete_folders_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"looked for train-images-idx3-ubyte.*data_batch_1"):
        load_images(tmp_path)
    (write_idx_folder(tmp_path) / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(RecipeError, match=r"incomplete: looked for t10k-images-idx3-ubyte and"):
        load_images(tmp_path)


def test_an_unknown_name_lists_names_and_formats() -> None:
    with pytest.raises(RecipeError, match=r"'fashon', neither as a name \(fashion-subset, fashion\) nor as a path"):
        load_images("fashon")


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("attacked"),)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = cifar_files(binary=False) | {"test_batch": pickle.dumps({b"data": Attack(), b"labels": []})}
    with pytest.raises(RecipeError, match=r"test_batch is damaged or of another kind: .*it asks for"):
        load_images(write_folder(tmp_path / "set", files))
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(("pack", "ending"), [(bytes, ".txt"), (gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_text_predicts_the_next_token(tmp_path: Path, pack: Callable[[bytes], bytes], ending: str) -> None:
    content = ("Thin wires, née thick. " * 40).encode()
    path = tmp_path / f"text{ending}"
    path.write_bytes(pack(content))
    text = load_text(path, context=16)
    x, y = text.train.batch(torch.tensor([0, 3]))
    assert bytes(x[1].tolist()) == content[48:64]
    assert bytes(y[1].tolist()) == content[49:65]
    assert text.model_options() == {"vocabulary": 256, "context": 16}
    assert bytes(text.train_tokens.tolist() + text.test_tokens.tolist()) == content
    last, _ = text.train.batch(torch.tensor([len(text.train) - 1]))
    assert last.shape == (1, 16)


def test_text_by_characters_decodes_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("née thick. " * 40)
    text = load_text(path, tokens="characters", context=8)
    assert text.decode(text.train_tokens[:11]) == "née thick. "
    assert text.model_options()["vocabulary"] == len(set("née thick. "))


def test_text_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no text file at .*missing\.txt"):
        load_text(tmp_path / "missing.txt")
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(RecipeError, match="too short"):
        load_text(tmp_path / "short.txt")
    (tmp_path / "broken.xz").write_bytes(b"not xz")
    with pytest.raises(RecipeError, match=r"broken\.xz cannot be read as \.xz"):
        load_text(tmp_path / "broken.xz")
    (tmp_path / "latin.txt").write_bytes(b"\xe9" * 5000)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_text(tmp_path / "latin.txt", tokens="characters")
