"""The public names of thinwire, gathered; `import thinwire` offers them all and loads them at their first use."""

from thinwire._version import __version__
from thinwire.core.codec import Codec
from thinwire.core.context import Context
from thinwire.core.plan import Plan, Rule
from thinwire.core.route import StepInfo
from thinwire.core.schedule import LossGuard
from thinwire.core.settings import Delay, Feedback
from thinwire.core.slot import Slot
from thinwire.core.spec import Size, Spec
from thinwire.core.stage import Encoded, Stage, Transform, WireCoder
from thinwire.ddp.handle import Handle
from thinwire.ddp.loop import GradientState, average_gradients
from thinwire.ddp.metrics import CodecMetrics, StepMetrics
from thinwire.dispatch import attach
from thinwire.errors import CodecError, StateError, ThinwireError, WireError, WorldError
from thinwire.outer.attach import attach_outer
from thinwire.outer.handle import OuterHandle
from thinwire.outer.metrics import RoundMetrics
from thinwire.outer.settings import OUTER_PRESETS, OuterSettings
from thinwire.planner.advice import Advice, advise
from thinwire.planner.auto_record import AutoDecision
from thinwire.planner.auto_settings import AutoSettings
from thinwire.planner.profile import Profile
from thinwire.presets import PRESETS
from thinwire.stages import STAGES
from thinwire.stages.codebook import MX, Codebook
from thinwire.stages.coders import Elias, Huffman
from thinwire.stages.ef21 import EF21
from thinwire.stages.floats import BF16, FP16, FP32, Float
from thinwire.stages.fourier import DCT, FFT
from thinwire.stages.hadamard import Hadamard
from thinwire.stages.importance import Importance
from thinwire.stages.integers import Integers
from thinwire.stages.levels import ALQ
from thinwire.stages.lowrank import PowerSGD
from thinwire.stages.momentum import Momentum
from thinwire.stages.pca import PCA
from thinwire.stages.quantise import NUQSGD, QSGD, Sign, Ternary
from thinwire.stages.randomk import RandomK
from thinwire.stages.rangefloat import RangeFloat
from thinwire.stages.sharedtopk import SharedTopK
from thinwire.stages.sparsify import Threshold, TopK
from thinwire.stages.vote import Ballot, Vote
from thinwire.worlds.distributed import average
from thinwire.worlds.simulated import Outcome, simulate

__all__ = [
    "ALQ",
    "BF16",
    "DCT",
    "EF21",
    "FFT",
    "FP16",
    "FP32",
    "MX",
    "NUQSGD",
    "OUTER_PRESETS",
    "PCA",
    "PRESETS",
    "QSGD",
    "STAGES",
    "Advice",
    "AutoDecision",
    "AutoSettings",
    "Ballot",
    "Codebook",
    "Codec",
    "CodecError",
    "CodecMetrics",
    "Context",
    "Delay",
    "Elias",
    "Encoded",
    "Feedback",
    "Float",
    "GradientState",
    "Hadamard",
    "Handle",
    "Huffman",
    "Importance",
    "Integers",
    "LossGuard",
    "Momentum",
    "Outcome",
    "OuterHandle",
    "OuterSettings",
    "Plan",
    "PowerSGD",
    "Profile",
    "RandomK",
    "RangeFloat",
    "RoundMetrics",
    "Rule",
    "SharedTopK",
    "Sign",
    "Size",
    "Slot",
    "Spec",
    "Stage",
    "StateError",
    "StepInfo",
    "StepMetrics",
    "Ternary",
    "ThinwireError",
    "Threshold",
    "TopK",
    "Transform",
    "Vote",
    "WireCoder",
    "WireError",
    "WorldError",
    "__version__",
    "advise",
    "attach",
    "attach_outer",
    "average",
    "average_gradients",
    "simulate",
]
