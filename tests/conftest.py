"""What all tests share. One thread: ranks are processes on few cores, and sums of threaded libraries depend on it."""

import pytest
import torch

from thinwire_lab.recipes import Images

torch.set_num_threads(1)


@pytest.fixture
def small_images() -> Images:
    """Two kinds of image, bright and dark, that a few steps learn to tell apart."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(96) % 2
    images = torch.randn(96, 1, 8, 8, generator=generator) + labels[:, None, None, None]
    return Images(
        train_x=images[:64], train_y=labels[:64], test_x=images[64:], test_y=labels[64:], classes=("dark", "bright")
    )
