"""What a training run is, as one value, and everything that follows from it alone: batches, learning rate, loss.

The distributed loop (`training`) and the simulated one (`simulated`) build on these pieces, so that rank r sees the
same examples at step s in both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

from thinwire import Plan
from thinwire_lab.recipes.data import Data, Part, load_images, load_text
from thinwire_lab.recipes.errors import RecipeError
from thinwire_lab.recipes.models import MODELS, build_model, reads_text
from thinwire_lab.recipes.momentum import momenta_of


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model, data and hyperparameters; two runs of one recipe on as many ranks are the same run."""

    model: str = "vgg-tiny"
    model_options: Mapping[str, object] = field(default_factory=dict)
    data: str = "fashion-subset"
    context: int = 128  # tokens of one example of text
    batch: int = 32  # examples on each rank
    steps: int = 400
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    warmup: int = 20
    clip: float = 0.0  # largest norm of the averaged gradient; 0 leaves it alone
    seed: int = 0
    amp: bool = False
    log_every: int = 10
    evaluate_every: int = 0  # 0: only at the end
    test_limit: int = 0  # examples of the test part that are looked at, spread over it; 0: all

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise RecipeError(f"there is no model {self.model!r}; known models: {', '.join(MODELS)}.")
        for name, known in (("optimizer", ("sgd", "adamw")), ("schedule", ("cosine", "step", "constant"))):
            if getattr(self, name) not in known:
                raise RecipeError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}.")
        for name, least in (
            ("batch", 1),
            ("steps", 1),
            ("context", 1),
            ("log_every", 1),
            ("evaluate_every", 0),
            ("test_limit", 0),
        ):
            if getattr(self, name) < least:
                raise RecipeError(f"{name} must be at least {least}, not {getattr(self, name)}.")


RECIPES: Mapping[str, Recipe] = {
    "fashion-tiny": Recipe(),
    "fashion-vgg": Recipe(model="vgg", batch=16),
    "fashion-resnet": Recipe(model="resnet"),
    "fashion-mlp": Recipe(model="mlp"),
    "text-gpt": Recipe(
        model="gpt",
        data="text.txt",
        batch=8,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.1,
        clip=1.0,
        steps=2000,
        test_limit=256,
    ),
    "text-tiny": Recipe(
        model="gpt-tiny",
        data="text.txt",
        batch=16,
        optimizer="adamw",
        lr=3e-3,
        weight_decay=0.1,
        clip=1.0,
        context=64,
        test_limit=1024,
    ),
}


def load_data(recipe: Recipe) -> Data:
    """Text if the recipe's model reads text, images otherwise."""
    if reads_text(recipe.model):
        return load_text(recipe.data, context=recipe.context)
    return load_images(recipe.data)


def fresh_model(recipe: Recipe, data: Data) -> nn.Module:
    """The recipe's model with the weights of its seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return build_model(recipe.model, **{**data.model_options(), **recipe.model_options})


def make_optimizer(recipe: Recipe, model: nn.Module, plan: Plan | None = None) -> torch.optim.Optimizer:
    """The recipe's optimiser; SGD has no momentum for parameters to which the plan's chains give it.

    A chain knows nothing of weight decay, which momentum b amplifies by 1/(1-b): it is then made larger by as much, so
    that all plans train with the same momentum SGD.
    """
    if recipe.optimizer == "adamw":
        parameters = model.parameters()
        return torch.optim.AdamW(parameters, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
    momenta = momenta_of(plan, model.named_parameters())
    groups = []
    for chain in sorted({momenta.get(name, 0.0) for name, _ in model.named_parameters()}):
        mine = [parameter for name, parameter in model.named_parameters() if momenta.get(name, 0.0) == chain]
        momentum = 0.0 if chain else recipe.momentum
        groups.append({"params": mine, "momentum": momentum, "weight_decay": recipe.weight_decay / (1.0 - chain)})
    return torch.optim.SGD(groups, lr=recipe.lr)


def learning_rate(recipe: Recipe, step: float) -> float:
    """A function of the step alone, so that a resumed run needs no state: linear warm-up, then the schedule.

    A run whose length is given in seconds is at step t * recipe.steps of this schedule when the share t has passed.

    cosine: (1 + cos(pi t)) / 2; step: 1, 1/10 from the half, 1/100 from three quarters; t is the share of steps done.
    """
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    done = min(1.0, (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * done)) / 2
    if recipe.schedule == "step":
        return recipe.lr * (1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01)
    return recipe.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


class Batches:
    """The batch of any step on one rank: every epoch is a new shuffle by `DistributedSampler`, of which rank r gets
    its share without overlap; an incomplete last batch is left out.

    Because a batch is a function of (seed, step, rank), a resumed run goes on where it was.
    """

    def __init__(self, part: Part, *, batch: int, seed: int, rank: int = 0, ranks: int = 1) -> None:
        self.part, self.size = part, batch
        self.sampler: DistributedSampler[int] = DistributedSampler(
            part,  # type: ignore[arg-type]  # the sampler only asks for its length
            num_replicas=ranks,
            rank=rank,
            seed=seed,
            drop_last=True,
        )
        self.steps_per_epoch = len(part) // ranks // batch
        if not self.steps_per_epoch:
            raise RecipeError(
                f"{len(part)} training examples are too few for {ranks} ranks with batches of {batch};"
                f" take batches of at most {len(part) // ranks}."
            )
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self.sampler.set_epoch(epoch)
            self._epoch, self._order = epoch, torch.tensor(list(self.sampler))
        return self.part.batch(self._order[place * self.size : (place + 1) * self.size])


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over all predictions: one for an image, one for each token of a text."""
    logits: Tensor = model(x)
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())
