"""Loss and accuracy of a model on the test part, shared out over the ranks."""

from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

from thinwire_lab.recipes.data import Part


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and share of right predictions."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(
    model: nn.Module, part: Part, *, limit: int = 0, batch: int = 250, rank: int = 0, ranks: int = 1
) -> Evaluation:
    """At most `limit` examples, spread evenly, of which rank r takes every ranks-th.

    Only three sums travel, so all ranks get the same answer.
    """
    device = next(model.parameters()).device
    sums = torch.zeros(3, dtype=torch.float64)  # loss, right predictions, predictions
    was_training = model.training
    model.eval()
    count = min(limit, len(part)) if limit else len(part)
    spread = torch.arange(count) * len(part) // count
    for chosen in torch.split(spread[rank::ranks], batch):
        x, y = (tensor.to(device) for tensor in part.batch(chosen))
        logits = model(x).flatten(0, -2).float()
        y = y.flatten()
        loss = F.cross_entropy(logits, y, reduction="sum").item()
        right = (logits.argmax(dim=-1) == y).sum().item()
        sums += torch.tensor([loss, right, len(y)], dtype=torch.float64)
    model.train(was_training)
    if ranks > 1:
        sums = sums.to(device)
        dist.all_reduce(sums)
    loss, right, predictions = sums.tolist()
    return Evaluation(loss=loss / predictions, accuracy=right / predictions)


def guess_accuracy(part: Part, limit: int = 1000) -> float:
    """The accuracy of always giving the most frequent answer, on at most `limit` examples, spread evenly."""
    count = min(limit, len(part))
    _, y = part.batch(torch.arange(count) * len(part) // count)
    return y.flatten().bincount().max().item() / y.numel()
