"""Data sets in memory: images by name or path, text from any file.

A recipe needs little of them: how many examples a part has, a batch of given examples, and which sizes a model needs.
"""

import gzip
import lzma
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from thinwire_lab.recipes.archives import DAMAGE, Array, RawImages, read_images, read_npz
from thinwire_lab.recipes.errors import RecipeError

DEBIAN_FASHION = Path("/usr/share/dataset-fashion-mnist")
SUBSET = "fashion-subset.npz.xz"


class Part(Protocol):
    """The training or the test part of a data set."""

    def __len__(self) -> int: ...

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the examples with these indices."""


class Data(Protocol):
    """What a training run needs of a data set."""

    @property
    def train(self) -> Part: ...

    @property
    def test(self) -> Part: ...

    def model_options(self) -> dict[str, object]:
        """The sizes a model for this data must have."""


@dataclass(frozen=True)
class ImagePart:
    x: Tensor  # float32 [count, channels, height, width]
    y: Tensor  # int64 [count]

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[chosen], self.y[chosen]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images with mean 0 and variance 1 in every channel of the training part, and the number of their class."""

    train_x: Tensor  # float32 [count, channels, height, width]
    train_y: Tensor  # int64 [count]
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]

    @property
    def train(self) -> ImagePart:
        return ImagePart(self.train_x, self.train_y)

    @property
    def test(self) -> ImagePart:
        return ImagePart(self.test_x, self.test_y)

    def model_options(self) -> dict[str, object]:
        return {"shape": tuple(self.train_x.shape[1:]), "classes": len(self.classes)}


def load_images(name_or_path: str | Path = "fashion-subset") -> Images:
    """`fashion-subset` (packaged), `fashion` (Debian's package), or a path to Fashion-MNIST, CIFAR-10 or an .npz."""
    if name_or_path == "fashion-subset":
        return _normalised(_read_subset())
    if name_or_path == "fashion":
        if not DEBIAN_FASHION.is_dir():
            raise RecipeError(
                f"the complete Fashion-MNIST was looked for in {DEBIAN_FASHION}, which does not exist: install Debian's"
                " package dataset-fashion-mnist, or give the path of a folder with its IDX files or of an .npz."
            )
        return _normalised(read_images(DEBIAN_FASHION))
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise RecipeError(
            f"there is no image data set {str(name_or_path)!r}, neither as a name (fashion-subset, fashion) nor as a"
            f" path ({path.absolute()}); a path leads to an .npz, cifar-10-python.tar.gz, cifar-10-binary.tar.gz, or a"
            " folder with the files of CIFAR-10 or the IDX files of Fashion-MNIST."
        )
    return _normalised(read_images(path))


def _read_subset() -> RawImages:
    packaged = resources.files("thinwire_lab.recipes") / "data" / SUBSET
    return read_npz(Path(SUBSET), lzma.decompress(packaged.read_bytes()))


def _normalised(raw: RawImages) -> Images:
    def to_planes(pixels: Array) -> Tensor:  # bytes [count, height, width(, channels)] -> [count, channels, h, w]
        four = pixels[..., None] if pixels.ndim == 3 else pixels
        return torch.from_numpy(np.array(four.transpose(0, 3, 1, 2), order="C")).float().div_(255)

    train_x, test_x = to_planes(raw.train_x), to_planes(raw.test_x)
    mean = train_x.mean(dim=(0, 2, 3), keepdim=True)
    spread = train_x.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-6)  # a channel may be all black
    return Images(
        train_x=train_x.sub_(mean).div_(spread),
        train_y=torch.from_numpy(raw.train_y.astype(np.int64)),
        test_x=test_x.sub_(mean).div_(spread),
        test_y=torch.from_numpy(raw.test_y.astype(np.int64)),
        classes=raw.classes,
    )


@dataclass(frozen=True)
class TextPart:
    """Text cut into windows of `context` tokens; every token's target is its successor."""

    tokens: Tensor  # uint8 or int32 [length]
    context: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        places = chosen[:, None] * self.context + torch.arange(self.context)
        return self.tokens[places].long(), self.tokens[places + 1].long()


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text as tokens, its end kept for tests; `vocabulary` holds the characters, or is empty for bytes."""

    train_tokens: Tensor
    test_tokens: Tensor
    context: int
    vocabulary: str = ""

    @property
    def train(self) -> TextPart:
        return TextPart(self.train_tokens, self.context)

    @property
    def test(self) -> TextPart:
        return TextPart(self.test_tokens, self.context)

    def model_options(self) -> dict[str, object]:
        return {"vocabulary": len(self.vocabulary) or 256, "context": self.context}

    def decode(self, tokens: Tensor) -> str:
        if self.vocabulary:
            return "".join(self.vocabulary[token] for token in tokens.tolist())
        return bytes(tokens.tolist()).decode(errors="replace")


def load_text(
    path: str | Path,
    *,
    tokens: Literal["bytes", "characters"] = "bytes",
    context: int = 128,
    validation: float = 0.1,
) -> Text:
    """Any text file, also .gz or .xz, with its last tenth (`validation`) kept for tests."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise RecipeError(f"there is no text file at {source.absolute()}; any text, .gz or .xz file will do.")
    opener = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(source.suffix, bytes)
    try:
        content = opener(source.read_bytes())
        characters = content.decode() if tokens == "characters" else ""
    except DAMAGE as reason:
        raise RecipeError(f"{source} cannot be read as {source.suffix or 'text'} ({reason}); get it again.") from None
    vocabulary = "".join(sorted(set(characters)))
    if vocabulary:
        number = {character: index for index, character in enumerate(vocabulary)}
        sequence = torch.tensor([number[character] for character in characters], dtype=torch.int32)
    else:
        sequence = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    kept = int(len(sequence) * validation)
    if kept <= context:
        raise RecipeError(
            f"{source} is too short: its test part ({kept} of {len(sequence)} tokens) must be longer than the context"
            f" of {context}; take a longer text or a shorter context."
        )
    cut = len(sequence) - kept
    return Text(train_tokens=sequence[:cut], test_tokens=sequence[cut:], context=context, vocabulary=vocabulary)
