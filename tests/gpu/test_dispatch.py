"""Which kernels work where: forced ones, those of a device that was tested, and none where Triton is missing."""

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.gpu.emulation import emulated
from thinwire.kernels import gpu, known_answers, native
from thinwire.kernels.gpu import launch

CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_known_answers_are_right_when_the_kernels_are() -> None:
    with emulated():
        assert known_answers.implementation(CPU).startswith("Triton")
        assert known_answers.wrong_kernels(CPU) == []
    assert all(answer.right for answer in known_answers.answers(CPU))  # the compiled ones


def test_a_kernel_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answers, "SCHEMES", {"sign": known_answers.SCHEMES["sign"]})
    for other in ("_shares", "_symbols"):
        monkeypatch.setattr(known_answers, other, lambda device: iter(()))
    with emulated():
        right = launch.run

        def wrong(kernel: Any, programs: int, args: Any, constants: Any) -> None:
            right(kernel, programs, args, constants)
            if kernel.fn.__name__ == "decode" and constants["KIND"] == 3:
                args[2].neg_()

        launch.run = wrong
        assert known_answers.wrong_kernels(CPU) == ["sign: decode"]
        launch.run = lambda *given: (_ for _ in ()).throw(RuntimeError("no driver"))
        assert known_answers.wrong_kernels(CPU) == ["RuntimeError: no driver"]


def test_a_device_with_wrong_bits_uses_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_answers, "wrong_kernels", lambda device: ["qsgd: encode"])
    device = torch.device("cuda:7")
    gpu._tested.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"wrong bits on cuda:7 \(qsgd: encode\).*selftest --device cuda:7"):
        assert gpu.kernels_of(device) is None
    assert gpu.kernels_of(device) is None  # and says so once
    with gpu.untested(device):
        assert gpu.kernels_of(device) is not None
    gpu._tested.cache_clear()


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
    gpu.loaded.cache_clear()
    with pytest.warns(RuntimeWarning, match="GPU kernels are not available"):
        assert gpu.loaded() is None
    gpu.loaded.cache_clear()


def test_cpu_tensors_never_reach_triton_unless_forced() -> None:
    x = torch.ones(4)
    assert gpu.gpu_for(x) is None
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
