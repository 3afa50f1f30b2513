"""The stages. This table is the only place that knows their names."""

from thinwire.core.settings import Delay, Feedback, Setting
from thinwire.core.stage import Stage
from thinwire.core.text import NAMES
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

STAGES: tuple[type[Stage] | type[Setting], ...] = (
    Feedback,
    Delay,
    FP32,
    FP16,
    BF16,
    Float,
    Integers,
    PCA,
    QSGD,
    NUQSGD,
    ALQ,
    Ternary,
    Sign,
    RangeFloat,
    Codebook,
    MX,
    FFT,
    DCT,
    Hadamard,
    TopK,
    SharedTopK,
    Threshold,
    Momentum,
    EF21,
    Importance,
    RandomK,
    PowerSGD,
    Ballot,
    Vote,
    Elias,
    Huffman,
)

NAMES.update({stage.name: stage for stage in STAGES})
