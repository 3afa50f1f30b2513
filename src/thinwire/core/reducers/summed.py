"""The sum by the backend's own all-reduce, for chains of transforms."""

from thinwire.core.ops import AllReduce, Rounds
from thinwire.core.reducers.work import Reduced, Work
from thinwire.core.spec import Size, Spec


def cost(spec: Spec, ranks: int) -> Size:
    """Bytes a rank sends: a bandwidth-optimal all-reduce in 2(P-1) segments of ceil(n/P) elements."""
    return Size(2 * (ranks - 1) * -(-spec.numel // ranks) * (spec.bits // 8), spec.exact)


def summed(work: Work) -> Rounds[Reduced]:
    y = work.source.tensor()
    if work.keep == "nothing":  # a backend sums in place
        (total,) = yield AllReduce([y])
        return Reduced(total, None)
    (total,) = yield AllReduce([work.total.copy_(y)])
    return Reduced(total, y.zero_() if work.keep == "remainder" else y)
