"""What the compilers make of the kernels: exact instructions, wide loads, no spills, few variants, and AMD, too."""

from typing import Any

import pytest
import torch

from tests.gpu.cases import TABLE
from tests.gpu.code import INEXACT, check_amd, for_amd, resources
from tests.gpu.emulation import COMPILED, compiled, driver
from thinwire.kernels import gpu
from thinwire.kernels.gpu import launch
from thinwire.kernels.packing import packed_size
from thinwire.kernels.quantise import Scheme

SCHEMES = {
    "qsgd": Scheme("uniform", 4, 512),
    "nuqsgd": Scheme("exponential", 4, 512, "l2"),
    "sign": Scheme("sign", 1, 512),
    "levels": Scheme("levels", 4, 512, "l2", TABLE),
    "nuqsgd with short buckets": Scheme("exponential", 4, 100, "l2"),
}


def made(scheme: Scheme, numel: int, ranks: int = 3, offset: int = 0, key: int = 5, **options: Any) -> dict[str, Any]:
    """All kernels that an encoding and a decoding launch, by name, compiled and not run."""
    found: dict[str, Any] = {}
    held = launch.run, gpu.ON_CPU

    def compile_only(kernel: Any, programs: int, args: Any, constants: Any) -> None:
        found[kernel.fn.__name__] = compiled(kernel, args, constants, **options)

    x = torch.zeros(numel)
    message = torch.zeros(offset + scheme.scale_bytes(numel) + packed_size(numel, scheme.bits), dtype=torch.uint8)
    launch.run, gpu.ON_CPU = compile_only, True
    try:
        layout = scheme._layout
        entry = gpu.loaded()
        assert entry is not None
        parts = message[offset : offset + scheme.scale_bytes(numel)], message[offset + scheme.scale_bytes(numel) :]
        entry.quantise.encode(layout, x, ranks, key, 7, *parts, True)
        entry.quantise.decode(layout, *parts, x, True, True, False)
    finally:
        launch.run, gpu.ON_CPU = held
    return found


@pytest.mark.parametrize("name", SCHEMES)
def test_the_instructions_are_exact_and_loads_are_wide(name: str) -> None:
    driver().capability = 80
    for kernel, found in made(SCHEMES[name], 5000).items():
        ptx = found.asm["ptx"]
        assert INEXACT.findall(ptx) == [], kernel
        assert ("ld.global.v4.b32" in ptx) == (kernel != "scale_buckets"), kernel  # buckets begin anywhere
        assert ("st.global.v4.b32" in ptx) == (kernel == "decode"), kernel
        used = resources(found.asm["cubin"])
        assert used["STACK"] == used["LOCAL"] == 0, kernel
        assert 0 < used["REG"] < 255, kernel


def test_the_pattern_finds_what_it_forbids() -> None:
    driver().capability = 80
    fused = made(SCHEMES["qsgd"], 5000, enable_fp_fusion=True)
    assert INEXACT.findall(fused["encode"].asm["ptx"])


def test_lengths_keys_and_addresses_make_few_variants() -> None:
    """A variant costs a compilation, in the first steps of a training."""
    driver().capability = 80
    hashes: dict[str, set[str]] = {"encode": set(), "decode": set()}
    for numel in (1, 16, 512, 5000, 1 << 16):
        for ranks, offset, key in ((1, 0, 1), (2, 1, 2**63 + 1), (16, 3, 2**31), (7, 16, 0)):
            for kernel, found in made(SCHEMES["qsgd"], numel, ranks, offset, key).items():
                hashes[kernel].add(found.hash)
    assert len(hashes["encode"]) <= 2  # with and without a division
    assert len(hashes["decode"]) == 1
    assert COMPILED


@pytest.mark.slow
@pytest.mark.parametrize(("target", "lanes"), [("gfx90a", 64), ("gfx942", 64), ("gfx1100", 32)])
@pytest.mark.parametrize("name", SCHEMES)
def test_amd_targets_compile(name: str, target: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with for_amd(target, lanes, monkeypatch):
        for kernel, found in made(SCHEMES[name], 5000).items():
            check_amd(kernel, found)
