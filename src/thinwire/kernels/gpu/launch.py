"""How Triton's kernels are launched: on the device of their tensors, without fused multiply-adds."""

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, programs: int, *args: Tensor | int | float, **constants: int | bool) -> None:
    """Run so many programs of a kernel, of one warp each: nothing but a bucket's scale crosses lanes."""
    if programs:
        run(kernel, programs, args, constants)


def run(kernel: Any, programs: int, args: tuple[Tensor | int | float, ...], constants: dict[str, int | bool]) -> None:
    """The launch itself; tests compile and emulate instead."""
    with torch.cuda.device_of(args[0]):  # type: ignore[no-untyped-call]
        kernel[(programs,)](*args, **constants, num_warps=1, enable_fp_fusion=False)


def signed32(word: int) -> int:
    """The low 32 bits as a signed number, as kernels take words of any size."""
    word &= 0xFFFFFFFF
    return word - 2**32 if word >= 2**31 else word
