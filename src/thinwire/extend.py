"""What authors of stages need beyond what `import thinwire` offers."""

from thinwire.core.fast import BlockCoder, FastPath, MessageCoder, PartCoder, Parts
from thinwire.core.ops import AllGather, AllReduce, Broadcast, Rounds
from thinwire.core.options import choice, number, switch, words
from thinwire.core.source import Source
from thinwire.core.spec import Kind
from thinwire.core.stage import DecidingStage, DeliveryStage, InputStage, ScheduledStage
from thinwire.core.text import register
from thinwire.kernels.modes import Mode, put
from thinwire.kernels.quantise import RangeCoder
from thinwire.kernels.reference.hashing import hash32

__all__ = [
    "AllGather",
    "AllReduce",
    "BlockCoder",
    "Broadcast",
    "DecidingStage",
    "DeliveryStage",
    "FastPath",
    "InputStage",
    "Kind",
    "MessageCoder",
    "Mode",
    "PartCoder",
    "Parts",
    "RangeCoder",
    "Rounds",
    "ScheduledStage",
    "Source",
    "choice",
    "hash32",
    "number",
    "put",
    "register",
    "switch",
    "words",
]
