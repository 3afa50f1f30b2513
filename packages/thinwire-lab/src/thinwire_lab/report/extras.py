"""The libraries that draw are an extra: what happens where they are missing."""

import importlib
from typing import Any

from thinwire.errors import ThinwireError


class ReportError(ThinwireError, RuntimeError):
    """A report that cannot be made here."""


def drawing_library(name: str) -> Any:
    """The module, or one sentence that says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as reason:
        package = name.partition(".")[0]
        raise ReportError(f"drawing needs {package}, which is not here: pip install 'thinwire-lab[report]'") from reason
