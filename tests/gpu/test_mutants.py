"""Kernels that are wrong in ways that an interpreter, or a look at ordinary numbers, does not notice: each is found."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.gpu import conftest

if conftest.why_skipped() is not None:
    pytest.skip(str(conftest.why_skipped()), allow_module_level=True)

from tests.gpu import cases
from tests.gpu.ptx import Fault
from thinwire.kernels.gpu import entry
from thinwire.kernels.gpu.programs import quantise as original
from thinwire.kernels.quantise import Scheme
from thinwire.kernels.reference.hashing import make_key

SOURCE = Path(original.__file__).read_text(encoding="utf-8")
MUTANTS = {
    "an approximate division": ("factor = tl.math.div_rn(numerator, divisor)", "factor = numerator / divisor"),
    "scales read as words": (
        "word = load_word(scales + (begin * WORDS + WORD) * 4, True, False)",
        "word = tl.load((scales + (begin * WORDS + WORD) * 4).to(tl.pointer_type(tl.int32)))",
    ),
    "a unary minus": (
        "value ^= (code & (TOP + 1)) * (-2147483648 // (TOP + 1))",
        "plain = value.to(tl.float32, bitcast=True)\n"
        "        value = tl.where(code > TOP, -plain, plain).to(tl.int32, bitcast=True)",
    ),
    "no mask on the tail": ("tl.load(x + start + at, mask=there, other=0.0)", "tl.load(x + start + at)"),
    "a maximum of floats": (
        "largest = tl.max(tl.max(bits & 0x7FFFFFFF, axis=1), axis=0)",
        "largest = tl.max(tl.max(tl.abs(v), axis=1), axis=0).to(tl.int32, bitcast=True)",
    ),
    "half of the key": ("hash32(position, key_low, key_high)", "hash32(position, key_low, key_low)"),
    "no lift of tiny scales": ("1.2676506002282294e30", "1.0"),
    "padding that is not zero": ("symbols = tl.where(there, symbols, 0)", "symbols = tl.where(there, symbols, 1)"),
    "positions of 16 bits": ("base + start.to(tl.uint32)", "(base & 0xFFFF) + start.to(tl.uint32)"),
}


def load(source: str, folder: Path) -> ModuleType:
    path = folder / "mutant.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutant", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def try_all(**options: Any) -> None:
    scheme, g, key = Scheme("uniform", 4, 512), torch.Generator().manual_seed(6), make_key(3, 7, 1, 5)
    for kind in ("ordinary", "nan", "subnormal", "zeros"):
        for n in (5, 700):
            x = cases.special(kind, n, g)
            cases.check_encoder(scheme, x, key, 2**32 - 100, **options)
    for n in (9, 600):
        cases.check_decoder(scheme, cases.any_message(scheme, n, g), n, "write", **options)


def test_the_kernels_as_they_are_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry.quantise, "kernels", load(SOURCE, tmp_path))
    try_all()


def test_fused_multiply_adds_are_found() -> None:
    with pytest.raises(Fault, match="fuse"):
        try_all(enable_fp_fusion=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = MUTANTS[name]
    assert SOURCE.count(right) == 1
    monkeypatch.setattr(entry.quantise, "kernels", load(SOURCE.replace(right, wrong), tmp_path))
    with pytest.raises((Fault, AssertionError)):
        try_all()
