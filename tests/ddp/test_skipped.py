"""What a skipped step delivered goes back into the residuals."""

import torch

from thinwire.core.plan import Plan
from thinwire.ddp.engine import Engine, NamedGradient

SHAPE = (30, 40)


def test_what_was_delivered_is_divided_by_the_ranks_and_not_multiplied_by_a_reciprocal() -> None:
    g = torch.Generator().manual_seed(0)
    gradient, held = torch.randn(SHAPE, generator=g), torch.randn(SHAPE, generator=g).view(-1)
    for ranks in (3, 5, 7):
        engine = Engine.of(Plan.parse("topk(density=0.1)"), [("weight", torch.zeros(SHAPE))])
        slot = engine._slot("weight")
        slot.residual = held.clone()
        engine._delivered, engine.overflow = [NamedGradient("weight", gradient, gradient)], True
        engine.end_step(ranks, 0.0)
        assert slot.residual is not None
        assert torch.equal(slot.residual, held + (gradient.view(-1).double() / ranks).float())
