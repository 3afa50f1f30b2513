"""What `attach_outer` refuses without other ranks."""

import pytest
import torch
from torch import nn

import thinwire


def test_without_torch_distributed_it_says_what_to_call() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(thinwire.WorldError, match=r"call torch\.distributed\.init_process_group"):
        thinwire.attach_outer(model, torch.optim.SGD(model.parameters(), lr=0.1))
