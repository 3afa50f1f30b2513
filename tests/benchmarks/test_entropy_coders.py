"""The comparison with zstd: it runs, and says what is missing."""

import re
import sys

import pytest
import torch

from benchmarks.entropy_coders import CODECS, coders_for, main, symbols_of


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(sys, "argv", ["entropy_coders.py"])
    with pytest.raises(SystemExit, match="needs the package zstandard; run pip install zstandard"):
        main()


def test_counts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["entropy_coders.py", "--rounds", "0"])
    with pytest.raises(SystemExit, match=re.escape("at least 1; got 4000000 and 0")):
        main()


def test_all_coders_give_back_what_they_got() -> None:
    zstandard = pytest.importorskip("zstandard")
    for text in CODECS:
        symbols = symbols_of(text, torch.randn(5000))
        for coder in coders_for(symbols, zstandard):
            decoded = coder.decode(coder.encode())
            if isinstance(decoded, torch.Tensor):
                assert torch.equal(decoded, symbols)
            else:
                assert len(decoded) == (2500 if coder.name.endswith("packed") else 5000)
