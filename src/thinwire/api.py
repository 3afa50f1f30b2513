"""The public names of thinwire, gathered; `import thinwire` offers them all and loads them at their first use."""

from thinwire._version import __version__
from thinwire.core.average import Turn
from thinwire.core.codec import Codec
from thinwire.core.plan import Plan, Rule
from thinwire.core.slot import Slot
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Scene, Stage
from thinwire.ddp.hook import Handle, attach
from thinwire.ddp.loop import GradientState, average_gradients
from thinwire.errors import CodecError, StateError, ThinwireError, WireError, WorldError
from thinwire.presets import PRESETS
from thinwire.stages import STAGES
from thinwire.stages.coders import Elias, Huffman
from thinwire.stages.floats import BF16, FP16, FP32
from thinwire.stages.integers import Integers
from thinwire.stages.quantise import NUQSGD, QSGD, Sign, Ternary
from thinwire.stages.rangefloat import RangeFloat
from thinwire.stages.settings import Feedback
from thinwire.stages.sparsify import Threshold, TopK
from thinwire.worlds.distributed import average
from thinwire.worlds.simulated import Outcome, simulate

__all__ = [
    "BF16",
    "FP16",
    "FP32",
    "NUQSGD",
    "PRESETS",
    "QSGD",
    "STAGES",
    "Codec",
    "CodecError",
    "Elias",
    "Encoded",
    "Feedback",
    "GradientState",
    "Handle",
    "Huffman",
    "Integers",
    "Outcome",
    "Plan",
    "RangeFloat",
    "Rule",
    "Scene",
    "Sign",
    "Size",
    "Slot",
    "Spec",
    "Stage",
    "StateError",
    "Ternary",
    "ThinwireError",
    "Threshold",
    "TopK",
    "Turn",
    "WireError",
    "WorldError",
    "__version__",
    "attach",
    "average",
    "average_gradients",
    "simulate",
]
