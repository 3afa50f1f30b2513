"""Tests of the GPU kernels need Triton, which compiles them; a GPU they do not need."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_CACHE_DIR", str(Path(__file__).resolve().parents[2] / ".cache" / "triton"))


def why_skipped() -> str | None:
    """Why these tests cannot run here; in CI they must, and fail without Triton."""
    if find_spec("triton") is not None or os.environ.get("CI"):
        return None
    return "Triton is not there: pip install --no-deps triton==3.7.1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (reason := why_skipped()) is not None:
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))
