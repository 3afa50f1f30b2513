"""What computes for a rank, where that may change the last bits of what it decodes."""

import platform
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from thinwire.core.codec import Codec
from thinwire.ddp.consistency import difference
from thinwire.worlds.peers import Peers


def warn_if_arithmetic_differs(world: Peers, codecs: Iterable[Codec], device: torch.device) -> None:
    """Compare processor and libraries, if a stage's results depend on them: the ranks' weights would drift apart."""
    concerned = sorted({stage.name for codec in codecs for stage in codec.transforms if not stage.portable})
    if not concerned:
        return
    found = difference(world.gathered(arithmetic(device), "the comparison of arithmetic"))
    if found is not None and world.rank == 0:
        many = len(concerned) > 1
        warnings.warn(
            f"{found}; {' and '.join(concerned)} decode{'' if many else 's'} with matrix products, whose last bits may"
            " then differ, so that the weights of the ranks drift apart by rounding. Use the same processors, versions"
            " and OMP_NUM_THREADS on all ranks, or broadcast the weights of rank 0 now and then.",
            RuntimeWarning,
            stacklevel=2,
        )


def arithmetic(device: torch.device) -> dict[str, Any]:
    """What the order of sums in torch's matrix products depends on."""
    facts: dict[str, Any] = {"the version of torch": torch.__version__}
    if device.type == "cpu":
        facts["the processor"] = processor()
        facts["the instructions that torch uses"] = torch.backends.cpu.get_cpu_capability()
        facts["the number of threads of torch"] = torch.get_num_threads()
    else:
        facts["the accelerator"] = torch.get_device_module(device).get_device_name(device)
    return facts


def processor() -> str:
    """Its model, where the system tells."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(errors="replace").splitlines() if listed.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
