"""What the kernels of a device compute, compared bit for bit with the reference on the CPU.

A family of kernels is tested as a whole before its first use on a GPU (`kernels.gpu`); `thinwire selftest` tests and
times all of them. `FAMILIES` is the registry of both: a new family enters it with its checks and its works.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from thinwire.kernels.answers import fallbacks, importance, integers, packing, quantise, rangefloat, selection, shares
from thinwire.kernels.answers.inputs import Check, Work
from thinwire.kernels.gpu import gpu_for, untested
from thinwire.kernels.native import native_for

__all__ = ["FAMILIES", "Answer", "Family", "answers", "fallback_answers", "implementation", "said", "wrong_kernels"]


class Family(NamedTuple):
    checks: Callable[[torch.device], Iterable[Check]]
    works: Callable[[torch.device, int], Iterable[Work]]  # to be timed, on so many elements


FAMILIES: dict[str, Family] = {
    **{kind: Family(partial(quantise.checks, kind), partial(quantise.works, kind)) for kind in quantise.KINDS},
    "packing": Family(packing.checks, packing.works),
    "rangefloat": Family(rangefloat.checks, rangefloat.works),
    "integers": Family(integers.checks, integers.works),
    "shares": Family(shares.checks, shares.works),
    "selection": Family(selection.checks, selection.works),
    "importance": Family(importance.checks, importance.works),
}


class Answer(NamedTuple):
    kernel: str
    right: bool  # whether it has the bits of the reference
    error: str = ""  # why there was no answer


def implementation(device: torch.device) -> str:
    """What works on this device, whether or not it is right."""
    x = torch.empty(1, device=device)
    with untested(device):
        if gpu_for("shares", x) is not None:
            return f"Triton {__import__('triton').__version__}"
    return "compiled" if native_for(x) is not None else "the torch reference"


def answers(device: torch.device, families: Iterable[str] | None = None) -> Iterator[Answer]:
    """One answer of each kernel of these families, from the kernels themselves even if they are known to be wrong."""
    for family in FAMILIES if families is None else families:
        yield from _answers(FAMILIES[family].checks(device), device)


def fallback_answers(device: torch.device) -> Iterator[Answer]:
    """Of what has no Triton kernel: torch's operators on this device, or compiled kernels on the CPU."""
    yield from _answers(fallbacks.checks(device), device)


def _answers(checks: Iterable[Check], device: torch.device) -> Iterator[Answer]:
    for name, right in checks:
        try:
            with untested(device):
                found = right()
        except Exception as reason:  # Triton and drivers raise errors of their own
            yield Answer(name, False, said(reason))
        else:
            yield Answer(name, found)


def said(reason: Exception) -> str:
    """The first line of an error."""
    lines = str(reason).splitlines()
    return f"{type(reason).__name__}: {lines[0] if lines else 'no message'}"


def wrong_kernels(device: torch.device, family: str) -> list[str]:
    """The kernels of a family that do not give the bits of the reference on this device, or fail; none should."""
    wrong = [answer for answer in answers(device, [family]) if not answer.right]
    return [f"{answer.kernel} ({answer.error})" if answer.error else answer.kernel for answer in wrong]
