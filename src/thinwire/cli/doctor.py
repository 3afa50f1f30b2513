"""`thinwire doctor`: what this machine has."""

import json
import platform
import shutil
import subprocess
import warnings
from typing import Annotated, Any

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine has: versions, compiler, kernels, backends, and whether links can be shaped.

    Example:

      thinwire doctor --json
    """
    facts = examine()
    if as_json:
        typer.echo(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def examine() -> dict[str, Any]:
    """Facts by name; text, numbers, truth values, or None for what is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the kernels are missing is told below
        import torch
        from torch import distributed as dist

        from thinwire import __version__
        from thinwire.compare.session import machine
        from thinwire.kernels.native import NATIVE
    from thinwire.lab import why_no_thin_links
    from thinwire.lab.network import PACKAGES, find_tool

    here = machine()
    refused = why_no_thin_links()
    return {
        "thinwire": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": here["system"],
        "processor": here["processor"],
        "cores": here["cores"],
        "torch_threads": torch.get_num_threads(),
        "memory_gb": round(here["memory_bytes"] / 1e9, 1),
        "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "compiled_kernels": NATIVE is not None,
        "compiler": _compiler(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "mpi": dist.is_available() and dist.is_mpi_available(),
        **{f"{tool}_command": find_tool(tool) for tool in PACKAGES},
        "thin_links": refused is None,
        "thin_links_refused": str(refused) if refused is not None else None,
        "report_plots": _has("matplotlib"),
        "report_page": _has("plotly"),
    }


def _compiler() -> str | None:
    """The first line that a C++ compiler says about itself."""
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
            return told.stdout.splitlines()[0] if told.stdout else path
    return None


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
