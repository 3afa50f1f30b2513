"""Evaluation counts every example once, or a spread of them, and leaves the model as it was."""

import torch
from torch import Tensor, nn

from thinwire_lab.recipes import evaluate
from thinwire_lab.recipes.data import ImagePart


class Remembering(nn.Module):
    """Says class 1 for everything and remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        self.seen += x.flatten().tolist()
        return self.scale.expand(len(x), 2)


PART = ImagePart(torch.arange(10.0).view(10, 1, 1, 1), torch.tensor([0, 1, 1, 1, 1, 1, 1, 1, 0, 0]))


def test_all_examples_in_uneven_batches() -> None:
    model = Remembering()
    result = evaluate(model, PART, batch=4)
    assert model.training
    assert model.seen == list(range(10))
    assert result.accuracy == 0.7
    right = -torch.tensor([0.0, 1.0]).log_softmax(0)
    torch.testing.assert_close(result.loss, (0.3 * right[0] + 0.7 * right[1]).item(), rtol=1e-6, atol=0)


def test_a_limit_is_spread_over_the_part() -> None:
    model = Remembering()
    evaluate(model, PART, limit=5)
    assert model.seen == [0, 2, 4, 6, 8]
