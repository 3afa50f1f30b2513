"""What the compilers make of the kernels that are no quantisers: as `test_code.py` has it for those."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.code import INEXACT, check_amd, for_amd, resources
from tests.gpu.emulation import compiled, driver, reference
from thinwire.kernels import gpu, importance, integers, packing, rangefloat, shares, sparse
from thinwire.kernels.gpu import launch
from thinwire.kernels.packing import packed_size, symbol_dtype
from thinwire.kernels.reference.integers import lane_count
from thinwire.kernels.reference.rangefloat import Rounding, rangefloat_grid

WIDE = re.compile(r"\b(?:ld|st)\.global\.(?:v4\.b32|v2\.b64)")
Made = dict[str, dict[str, Any]]  # what was compiled, by its hash, by kernel


def work_on_shares(x: Tensor, at: int) -> None:
    shares.enter_share(x, 1 + 2 * at, torch.zeros_like(x) if at else None, torch.empty_like(x))
    shares.finite_flag(x)


def work_on_packing(x: Tensor, at: int) -> None:
    for bits in (4, 7, 12):
        symbols = torch.zeros(x.numel(), dtype=symbol_dtype(bits))
        packing.pack(symbols, bits)
        packing.unpack(torch.zeros(at + packed_size(x.numel(), bits), dtype=torch.uint8)[at:], x.numel(), bits)


def work_on_range_floats(x: Tensor, at: int) -> None:
    how: list[tuple[int, int, Rounding]] = [(8, 3, "stochastic"), (8, 4, "nearest"), (12, 4, "nearest")]
    for bits, mantissa, rounding in how:
        grid = rangefloat_grid(bits, mantissa, -1.0 - at, 1.0)
        message = torch.zeros(at + packed_size(x.numel(), bits), dtype=torch.uint8)[at:]
        rangefloat.rangefloat_encode(x, bits, mantissa, grid, rounding, 5 << 31 * at, 7 + at, message)
        rangefloat.rangefloat_decode(message, bits, mantissa, grid, x, True)


def work_on_integers(x: Tensor, at: int) -> None:
    for bits in (5, 8):
        lanes = torch.zeros(lane_count(x.numel(), bits), dtype=torch.int32)
        integers.integers_encode(x, 3 + at, bits, 31 - at, 1.0 + at, 90.0, 5 << 31 * at, 7 + at, lanes)
        integers.integers_decode(lanes, bits, 0.03, 1.5 + at, x, True)


def work_on_selection(x: Tensor, at: int) -> None:
    sparse.largest(x, 100 + at)
    for chunk in (64, 4096):
        sparse.largest_in_chunks(x, chunk, 3 + at, min(1 + at, x.numel() % chunk))


def work_on_importance(x: Tensor, at: int) -> None:
    importance.importance(x, torch.ones_like(x), 0.01, 1 + 2 * at)


# The work, and the kernels that neither load nor store 16 bytes at a time, with the most variants of any kernel.
FAMILIES: dict[str, tuple[Callable[[Tensor, int], None], set[str], int]] = {
    "shares": (work_on_shares, {"spoil"}, 4),  # spoil: a kernel that almost never has anything to do
    "packing": (work_on_packing, set(), 3),
    "rangefloat": (work_on_range_floats, set(), 3),
    "integers": (work_on_integers, {"encode", "decode"}, 2),  # elements of a lane are far from each other
    "selection": (work_on_selection, set(), 3),
    "importance": (work_on_importance, set(), 2),  # one of them folds in float64
}


@contextmanager
def compiled_only(**options: Any) -> Iterator[Made]:
    """All that is launched meanwhile; nothing of it runs."""
    made: Made = defaultdict(dict)
    held = launch.run, gpu.ON_CPU

    def run(kernel: Any, programs: int, args: Any, constants: Any) -> None:
        found = compiled(kernel, args, constants, **options)
        made[kernel.fn.__name__][found.hash] = found

    launch.run, gpu.ON_CPU = run, True
    try:
        with reference():
            yield made
    finally:
        launch.run, gpu.ON_CPU = held


@pytest.mark.parametrize("family", FAMILIES)
def test_the_instructions_are_exact_loads_are_wide_and_variants_few(family: str) -> None:
    driver().capability = 80
    work, narrow, most = FAMILIES[family]
    with compiled_only() as made:
        for numel in (1000, 5000, 6016, 1 << 16):
            for at in (0, 1):
                work(torch.zeros(numel), at)
    assert made
    for name, variants in made.items():
        assert len(variants) <= most, name
        # not in variants for chunks of a length that is no multiple of 16
        assert any(WIDE.search(found.asm["ptx"]) for found in variants.values()) == (name not in narrow), name
        for found in variants.values():
            assert INEXACT.findall(found.asm["ptx"]) == [], name
            used = resources(found.asm["cubin"])
            assert used["STACK"] == used["LOCAL"] == 0, name
            assert 0 < used["REG"] < 255, name


@pytest.mark.slow
@pytest.mark.parametrize(("target", "lanes"), [("gfx90a", 64), ("gfx942", 64), ("gfx1100", 32)])
@pytest.mark.parametrize("family", FAMILIES)
def test_amd_targets_compile(family: str, target: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with for_amd(target, lanes, monkeypatch), compiled_only() as made:
        FAMILIES[family][0](torch.zeros(5000), 1)
    assert made
    for name, variants in made.items():
        for found in variants.values():
            check_amd(name, found)


@pytest.mark.parametrize("family", ["rangefloat", "integers", "importance"])
def test_fused_instructions_would_be_found(family: str) -> None:
    driver().capability = 80
    with compiled_only(enable_fp_fusion=True) as made:
        FAMILIES[family][0](torch.zeros(5000), 1)
    assert any(INEXACT.search(found.asm["ptx"]) for variants in made.values() for found in variants.values())
