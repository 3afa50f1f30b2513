"""What authors of stages need beyond `Stage`, `Spec`, `Size`, `Encoded` and `Context`, which `import thinwire` offers."""

from thinwire.core.ops import AllGather, AllReduce, Broadcast, Rounds
from thinwire.core.options import choice, number, switch, words
from thinwire.core.spec import Kind
from thinwire.core.text import register
from thinwire.kernels.reference.hashing import hash32

__all__ = [
    "AllGather",
    "AllReduce",
    "Broadcast",
    "Kind",
    "Rounds",
    "choice",
    "hash32",
    "number",
    "register",
    "switch",
    "words",
]
