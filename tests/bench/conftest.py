"""Small images, and one thread: tensors this small are faster on one, and much faster on a busy machine."""

from collections.abc import Iterator

import pytest
import torch

from thinwire.recipes import Images


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_images() -> Images:
    """Two kinds of image, bright and dark."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(96) % 2
    images = torch.randn(96, 1, 8, 8, generator=generator) + labels[:, None, None, None]
    return Images(
        train_x=images[:64], train_y=labels[:64], test_x=images[64:], test_y=labels[64:], classes=("dark", "bright")
    )
