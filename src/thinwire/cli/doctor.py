"""`thinwire doctor`: what this machine has."""

import json
import platform
import shutil
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, NamedTuple

import typer

from thinwire.cli.installed import DOCTOR, PackageError, load, package_of
from thinwire.cli.layout import columns, marks, terminal_width, wrapped


class Check(NamedTuple):
    """One line of the diagnosis; `purpose` is what the thing that was checked is needed for."""

    name: str
    state: Literal["ok", "warning", "error"]
    text: str
    purpose: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    link: Annotated[bool, typer.Option("--link", help="Measure the link between the ranks, under torchrun.")] = False,
    expected: Annotated[str | None, typer.Option(help="The rate that the link should have, such as 1gbit.")] = None,
) -> None:
    """Say what this machine has, what it is ready for and what is missing.

    Looks at versions, backends and compiled kernels; with thinwire-lab also at thin links and reports.
    With --link, under torchrun (torchrun --nnodes 4 ... -m thinwire doctor --link): measures what the link between the
    ranks carries, and names a rank whose link is broken.
    The exit code is 1 if processes cannot be connected at all or a link is broken, else 0.

    Examples:

      thinwire doctor

      thinwire doctor --json
    """
    if link or expected is not None:
        from thinwire.cli.link import examine_link

        raise typer.Exit(examine_link(expected, as_json))
    facts = examine()
    checks = diagnose(facts)
    for entry in entry_points(group=DOCTOR):
        try:
            part = load(entry)
        except PackageError as error:
            checks.append(Check(package_of(entry), "warning", str(error)))
        else:
            facts |= part.examine()
            checks += part.diagnose(facts)
    if as_json:
        typer.echo(json.dumps(facts | {"verdict": verdict(checks)}))
    else:
        _show(checks)
    if any(check.state == "error" for check in checks):
        raise typer.Exit(1)


def _show(checks: Sequence[Check]) -> None:
    mark, width = marks(), terminal_width()
    colours = {mark["ok"]: typer.colors.GREEN, mark["warning"]: typer.colors.YELLOW, mark["error"]: typer.colors.RED}
    for line in columns([(mark[check.state], check.name, check.text) for check in checks], width):
        if line[0] in colours:
            typer.secho(line[0], fg=colours[line[0]], nl=False)
            line = line[1:]
        typer.echo(line)
    typer.echo("\n" + "\n".join(wrapped(verdict(checks), width)))


def diagnose(facts: Mapping[str, Any]) -> list[Check]:
    """What the facts mean, with a remedy for everything that is not as it should be."""
    versions = f"{facts['thinwire']}, Python {facts['python']}, torch {facts['torch']}"
    gpus = {0: "no GPU", 1: "1 GPU"}.get(facts["gpus"], f"{facts['gpus']} GPUs")
    machine = f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB, {gpus}, {facts['system']}"
    return [
        Check("thinwire", "ok", versions),
        Check("machine", "ok", machine),
        _backends(facts),
        *_gpus(facts),
        _kernels(facts),
    ]


def _backends(facts: Mapping[str, Any]) -> Check:
    there = [name for name in ("gloo", "nccl", "mpi") if facts[name]]
    if not there:
        remedy = "none: this build of torch cannot connect processes; install one that has torch.distributed"
        return Check("backends", "error", remedy, "training with DDP")
    return Check("backends", "ok", ", ".join(there), "training with DDP")


def _gpus(facts: Mapping[str, Any]) -> list[Check]:
    """A line on GPUs where there are any."""
    if not facts["gpus"]:
        return []
    if facts["nccl"]:
        return [Check("GPUs", "ok", f"{facts['gpus']}, with nccl", "training on GPUs")]
    return [Check("GPUs", "warning", "they need nccl: install a build of torch that has it", "training on GPUs")]


def _kernels(facts: Mapping[str, Any]) -> Check:
    purpose = "fast encoding"
    if facts["compiled_kernels"]:
        return Check("kernels", "ok", "compiled", purpose)
    lacking = "" if facts["compiler"] else "install a C++17 compiler (Debian: g++), then "
    text = f"not compiled: torch does the same work more slowly; {lacking}reinstall thinwire"
    return Check("kernels", "warning", text, purpose)


def verdict(checks: Sequence[Check]) -> str:
    """One sentence on what works, and one on what does not."""
    ready = [check.purpose for check in checks if check.purpose and check.state == "ok"]
    missing = [check.name for check in checks if check.state != "ok"]
    told = f"Ready for {', '.join(ready)}." if ready else "Not ready yet."
    lacking = f"Missing: {', '.join(missing)}; their lines say what to do." if missing else "Nothing is missing."
    return f"{told} {lacking}"


def examine() -> dict[str, Any]:
    """Facts by name; text, numbers, truth values, or None for what is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the kernels are missing is told below
        import torch
        from torch import distributed as dist

        from thinwire import __version__
        from thinwire.machine import machine

    here = machine()
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
        "compiled_kernels": here["native"],
        "compiler": _compiler(),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "mpi": dist.is_available() and dist.is_mpi_available(),
    }


def _compiler() -> str | None:
    """The first line that a C++ compiler says about itself."""
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
            return told.stdout.splitlines()[0] if told.stdout else path
    return None
