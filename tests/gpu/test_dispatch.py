"""Which kernels work where: forced ones, and none where Triton is missing."""

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from thinwire.errors import CodecError
from thinwire.kernels import gpu, native, packing


@pytest.mark.parametrize("version", ["3.5.0", None])
def test_without_a_new_triton_the_reference_works(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def found(name: str) -> Any:
        if name != "triton":
            return real(name)
        if version is None:
            raise ImportError("No module named 'triton'")
        return type("triton", (), {"__version__": version})

    monkeypatch.setattr(importlib, "import_module", found)
    monkeypatch.setattr(gpu, "_LOADED", [])
    with pytest.warns(RuntimeWarning, match="GPU kernels are not available"):
        assert gpu.loaded() is None
    assert gpu.loaded() is None  # and says so once
    monkeypatch.setattr(gpu, "_LOADED", [])
    monkeypatch.setattr(gpu, "FORCED", "triton")
    with pytest.raises(CodecError, match="THINWIRE_KERNELS=triton, but Triton cannot be used"):
        gpu.loaded()


def test_triton_that_is_forced_refuses_tensors_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "FORCED", "triton")
    with pytest.raises(CodecError, match=r"THINWIRE_KERNELS=triton takes tensors of a GPU; .*TRITON_INTERPRET=1"):
        packing.pack(torch.ones(8, dtype=torch.uint8), 1)


def test_cpu_tensors_never_reach_triton_unless_forced() -> None:
    x = torch.ones(4)
    assert gpu.gpu_for("shares", x) is None
    assert native.native_for(x) is not None


@pytest.mark.parametrize(
    ("forced", "expected"),
    [("reference", "the torch reference"), ("native", "compiled"), ("triton", "Triton")],
)
def test_one_implementation_can_be_forced(forced: str, expected: str) -> None:
    """In a process of its own: kernels are decorated once. Triton's interpreter runs all known answers."""
    code = (
        "import torch; from thinwire.kernels import known_answers as k; cpu = torch.device('cpu');"
        "print(k.implementation(cpu)); print([a.kernel for a in k.answers(cpu) if not a.right])"
    )
    env = {"THINWIRE_KERNELS": forced, "TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    first, wrong = done.stdout.splitlines()
    assert first.startswith(expected)
    assert wrong == "[]"


def test_an_unknown_choice_is_refused() -> None:
    env = {"THINWIRE_KERNELS": "cuda", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", "import thinwire.kernels.native"], env=env, capture_output=True, text=True, timeout=60
    )
    assert "THINWIRE_KERNELS must be one of reference, native, triton" in done.stderr
