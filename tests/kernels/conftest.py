"""Every set of compiled loops, each in turn."""

from collections.abc import Iterator

import pytest
import torch

from thinwire.kernels.native import NATIVE

torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

VARIANTS = ("avx512", "avx2", "baseline")


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compiled loops of one instruction set; skipped where they do not exist."""
    if NATIVE is None:
        pytest.skip("the compiled kernels are not built")
    if not NATIVE.use_variant(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    next(name for name in VARIANTS if NATIVE.use_variant(name))
