"""`thinwire selftest`: whether the kernels of a device give the right bits, and how fast they are."""

import platform
from typing import Annotated, Any

import typer

from thinwire.errors import CodecError


def selftest(
    device: Annotated[str, typer.Option(help="The device: cuda, cuda:1, cpu.")] = "cuda",
    numbers: Annotated[int, typer.Option(help="Elements that each kernel is timed on.", min=512)] = 1 << 24,
) -> None:
    """Compare the kernels of a device with the reference, bit for bit, and time them.

    What has no Triton kernel is compared, too. Kernels are tried even if training has found them wrong. Prints a block
    to paste into an issue. The speed is in GB of fp32 elements per second, beside that of a copy on the same device.
    The exit code is 1 if an answer is wrong or missing.

    Examples:

      thinwire selftest --device cuda

      thinwire selftest --device cpu --numbers 65536
    """
    import torch

    try:
        where = torch.empty(1, device=device).device
    except (RuntimeError, AssertionError) as reason:
        said = str(reason).splitlines()[0]
        raise CodecError(f"--device must be one that torch can use; got {device!r} ({said}).") from reason
    from thinwire.kernels import known_answers, timing
    from thinwire.kernels.answers.fallbacks import MAY_DIFFER

    typer.echo("```")
    for line in _facts(where):
        typer.echo(line)
    wrong = 0
    for answer in known_answers.answers(where):
        wrong += not answer.right
        typer.echo(f"{'ok   ' if answer.right else 'WRONG'} {answer.kernel}{_because(answer.error)}")
    for answer in known_answers.fallback_answers(where):
        excused = answer.kernel in MAY_DIFFER and not answer.error
        wrong += not (answer.right or excused)
        told = "same bits" if answer.right else "differs, as it may" if excused else "WRONG, differs"
        typer.echo(f"{told}: {answer.kernel}, which has no Triton kernel{_because(answer.error)}")
    for timed in timing.times(where, numbers):
        wrong += bool(timed.error)
        rate = f"{timed.rate:8.2f} GB/s  {timed.share:7.1%} of a copy  {timed.kernel}"
        typer.echo(f"WRONG {timed.kernel}{_because(timed.error)}" if timed.error else rate)
    typer.echo("```")
    typer.echo(
        f"{wrong} answers are wrong or missing: please report this block." if wrong else "All answers are right."
    )
    raise typer.Exit(1 if wrong else 0)


def _because(error: str) -> str:
    return f" ({error})" if error else ""


def _facts(device: Any) -> list[str]:
    import torch

    from thinwire import __version__
    from thinwire.kernels.known_answers import implementation

    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else platform.machine()
    return [
        f"thinwire {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"device {device}: {name}" + (f", capability {torch.cuda.get_device_capability(device)}" if gpu else ""),
        f"kernels: {implementation(device)}",
    ]
