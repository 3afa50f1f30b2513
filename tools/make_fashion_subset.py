"""Makes the packaged subset of Fashion-MNIST from the complete one: the first images of every class, in file order.

    python tools/make_fashion_subset.py COMPLETE [--train 8400] [--test 2000]

COMPLETE is an .npz file or a folder of IDX files, as `thinwire_lab.recipes.load_images` takes them. The result is an
.npz without its own compression inside xz, which is a seventh smaller than a compressed .npz.
"""

import argparse
import io
import lzma
from pathlib import Path

import numpy as np

from thinwire_lab.recipes.archives import Array, read_images

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "packages/thinwire-lab/src/thinwire_lab/recipes/data/fashion-subset.npz.xz"


def first_of_each_class(labels: Array, count: int) -> Array:
    """Indices of the first count / classes images of every class, in the order of the file."""
    classes = np.unique(labels)
    chosen = [np.flatnonzero(labels == label)[: count // len(classes)] for label in classes]
    return np.sort(np.concatenate(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("complete", type=Path)
    parser.add_argument("--train", type=int, default=8400)
    parser.add_argument("--test", type=int, default=2000)
    arguments = parser.parse_args()
    raw = read_images(arguments.complete)
    train = first_of_each_class(raw.train_y, arguments.train)
    test = first_of_each_class(raw.test_y, arguments.test)
    plain = io.BytesIO()
    np.savez(
        plain,
        x_train=raw.train_x[train],
        y_train=raw.train_y[train].astype(np.uint8),
        x_test=raw.test_x[test],
        y_test=raw.test_y[test].astype(np.uint8),
        class_names=np.array(raw.classes),
    )
    TARGET.write_bytes(lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {len(train)} training and {len(test)} test images, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
