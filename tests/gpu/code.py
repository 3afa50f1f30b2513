"""How the code that the compilers made is read."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.emulation import driver

# what is approximate, flushes subnormals, or is, or may become, fused
INEXACT = re.compile(r"\.approx|\.ftz|\bfma\.|div\.full|\b(?:mul|add|sub)\.f(?:32|64)\b|\brcp\b|\brsqrt\b|\bex2\b")


def resources(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60)
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout + done.stderr)}


@contextmanager
def for_amd(target: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled meanwhile is compiled for this target."""
    from triton.backends.compiler import GPUTarget

    there = driver()
    with monkeypatch.context() as patched:
        patched.setattr(there, "get_current_target", lambda: GPUTarget("hip", target, lanes))
        patched.setattr(there, "get_current_device", lambda: 1000 + int(target[3:], 16))
        yield


def check_amd(kernel: str, found: Any) -> None:
    """No spills; only exact divisions are made of fused instructions."""
    code = found.asm["amdgcn"]
    assert re.findall(r"\.vgpr_spill_count:\s+(\d+)", code) == ["0"], kernel
    assert "fma_f32" not in code.split("v_div_scale", 1)[0], kernel
