"""Kernels that are wrong in ways that an interpreter, or a look at ordinary numbers, does not notice: each is found."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from tests.gpu import conftest

if conftest.why_skipped() is not None:
    pytest.skip(str(conftest.why_skipped()), allow_module_level=True)

from tests.gpu import cases, choices
from tests.gpu.warps import Fault
from thinwire.kernels.gpu import entry
from thinwire.kernels.quantise import Scheme
from thinwire.kernels.reference.hashing import make_key

QUANTISE = {
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


SELECT = {
    "all that is equal to the last one": ("(ties_before < ties))\n", "(ties_before <= ties))\n"),
    "sums that are not atomic": (
        'tl.atomic_add(bins + digit * BINS + tl.arange(0, BINS), total, mask=total > 0, sem="relaxed")',
        "tl.store(bins + digit * BINS + tl.arange(0, BINS), total, mask=total > 0)",
    ),
    "a last digit of 8 bits": ("tl.where(digit == DIGITS - 1, 7, 8)", "tl.where(digit == DIGITS - 1, 8, 8)"),
    "elements behind the end": ("& 0x7FFFFFFF, -1)", "& 0x7FFFFFFF, 1)"),
    "signs": (
        "key = tl.load(x + start + at).to(tl.int32, bitcast=True) & 0x7FFFFFFF",
        "key = tl.load(x + start + at).to(tl.int32, bitcast=True)",
    ),
    "counts of 8 bits": ("(key == last).to(tl.int32) << 16)", "(key == last).to(tl.int32) << 8)"),
    "a program that begins from nothing": ("if which > 0:", "if which < 0:"),
    "keys with other first digits": ("mask=(key >> shift >> bits) == prefix)", "mask=key >= 0)"),
    "chunks that are all whole": ("tl.where(end - start == chunk, each, rest)", "each + 0 * rest"),
    "a threshold of 30 bits": ("for at in range(31):", "for at in range(30):"),
    "digits that all begin from the same number": ("from_here_on >= left", "from_here_on >= k"),
}
IMPORTANCE = {
    "an approximate division": (
        "tl.math.div_rn(tl.abs(v), tl.where(floor > 0, size, 1.0))",
        "(tl.abs(v) / tl.where(floor > 0, size, 1.0))",
    ),
    "weights that are all zero": ("tl.where(floor > 0, size, 1.0)", "size"),
    "signs": ("tl.math.div_rn(tl.abs(v)", "tl.math.div_rn(v"),
    "sums in float32": (
        "wide * wide if SQUARED",
        "(wide.to(tl.float32) * wide.to(tl.float32)).to(tl.float64) if SQUARED",
    ),
}


def try_quantisers(**options: Any) -> None:
    scheme, g, key = Scheme("uniform", 4, 512), torch.Generator().manual_seed(6), make_key(3, 7, 1, 5)
    for kind in ("ordinary", "nan", "subnormal", "zeros"):
        for n in (5, 700):
            x = cases.special(kind, n, g)
            cases.check_encoder(scheme, x, key, 2**32 - 100, **options)
    for n in (9, 600):
        cases.check_decoder(scheme, cases.any_message(scheme, n, g), n, "write", **options)


def try_selection(**options: Any) -> None:
    g = torch.Generator().manual_seed(7)
    with choices.several_programs():
        for kind in ("often equal", "ordinary"):
            choices.check_largest(choices.elements(kind, 2100, g), 700, **options)
        choices.check_above(torch.randn(700, generator=g), -1.0, **options)
    for n, *how in ((1000, 64, 5, 3), (1000, 600, 30, 7)):
        for kind in ("often equal", "ordinary", "smallest"):
            choices.check_chunks(choices.elements(kind, n, g), *how, **options)


def try_importance(**options: Any) -> None:
    g = torch.Generator().manual_seed(8)
    weights = torch.randn(1300, generator=g)
    for given in (weights, torch.zeros(1300), weights * 1e30):
        choices.check_importance(torch.randn(1300, generator=g), given, 3, 100, **options)


class Subject(NamedTuple):
    attempt: Callable[..., None]
    mutants: dict[str, tuple[str, str]]


SUBJECTS = {
    "quantise": Subject(try_quantisers, QUANTISE),
    "select": Subject(try_selection, SELECT),
    "importance": Subject(try_importance, IMPORTANCE),
}
ALL = [(module, name) for module, subject in SUBJECTS.items() for name in subject.mutants]


def source_of(module: str) -> str:
    return Path(getattr(entry, module).kernels.__file__).read_text(encoding="utf-8")


def load(source: str, folder: Path) -> ModuleType:
    path = folder / "mutant.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutant", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("module", SUBJECTS)
def test_the_kernels_as_they_are_pass(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(entry, module), "kernels", load(source_of(module), tmp_path))
    SUBJECTS[module].attempt()


@pytest.mark.parametrize("module", ["quantise", "importance"])
def test_fused_multiply_adds_are_found(module: str) -> None:
    with pytest.raises(Fault, match="fuse"):
        SUBJECTS[module].attempt(enable_fp_fusion=True)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_mutant_is_found(module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = SUBJECTS[module].mutants[name]
    source = source_of(module)
    assert source.count(right) == 1
    monkeypatch.setattr(getattr(entry, module), "kernels", load(source.replace(right, wrong), tmp_path))
    with pytest.raises((Fault, AssertionError)):
        SUBJECTS[module].attempt()
