"""The plans that a quality budget admits, in the order of their predicted steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.core.codec import Codec
from thinwire.core.plan import Plan, Rule
from thinwire.core.spec import Spec
from thinwire.planner.candidates import REFERENCE, Quality, quality_of
from thinwire.planner.predict import Prediction, predict
from thinwire.planner.profile import Figures, Layer, Profile

WORTH = 0.97  # a plan must be predicted to take at most this share of the plain step
BY_LAYER = "by layer"
_BETTER = 0.98  # and a plan by layer at most this share of that of one codec for all


@dataclass(frozen=True)
class Choice:
    """One plan and what it would do.

    Args:
        codec: The codec that it is made of, or `"by layer"`.
        plan: The plan, as `thinwire.attach` takes it.
        prediction: Its step.
        spared: Layers that the budget does not let through the codec.
    """

    codec: str
    plan: Plan
    prediction: Prediction
    spared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices:
    """What was compared; `plain` is the step without compression.

    Args:
        plain: Nothing compressed.
        admitted: Plans that the budget admits, the least predicted step first; also those slower than plain.
        refused: Codecs that would lose too much of nearly every layer, with their predicted steps.
        best: The recommendation: the first of the admitted if it is worth it, else plain.
    """

    plain: Choice
    admitted: tuple[Choice, ...]
    refused: tuple[Choice, ...]
    best: Choice

    @property
    def pays(self) -> bool:
        """Whether compression is recommended at all."""
        return self.best is not self.plain


def choose(profile: Profile, quality: str | Quality = "safe", codecs: Sequence[str] | None = None) -> Choices:
    """Compare all codecs of a profile, and a plan by layer. The same profile gives the same choice on every rank.

    Args:
        profile: The figures.
        quality: How much a codec may lose: `"safe"`, `"balanced"`, `"bold"`, or a `Quality`.
        codecs: Only these codecs of the profile; None takes all.
    """
    budget = quality_of(quality)
    names = tuple(profile.codecs) if codecs is None else tuple(str(Codec.parse(text)) for text in codecs)
    plain = Choice("none", Plan.parse("none"), predict(profile, "none"))
    admitted, refused = [], []
    for codec in names:
        fits = _fitting(profile, codec, budget)
        compressible = [layer for layer in profile.model.layers if _is_compressed(codec, layer)]
        share = sum(layer.numel for layer in fits) / max(sum(layer.numel for layer in compressible), 1)
        if share < 0.5:
            refused.append(Choice(codec, Plan.parse(codec), predict(profile, codec)))
            continue
        spared = tuple(layer.name for layer in compressible if layer not in fits)
        plan = Plan((*(Rule(Codec(), _pattern(name)) for name in spared), Rule(Codec.parse(codec))))
        admitted.append(Choice(codec, plan, predict(profile, plan), spared))
    mixed = _by_layer(profile, names, budget, admitted)
    admitted += [] if mixed is None else [mixed]
    admitted = _ordered(admitted)
    refused.sort(key=lambda choice: choice.prediction.step)
    worth = admitted and admitted[0].prediction.step <= WORTH * plain.prediction.step
    return Choices(plain, tuple(admitted), tuple(refused), admitted[0] if worth else plain)


def _ordered(admitted: Sequence[Choice]) -> list[Choice]:
    """The least step first; of those that are nearly as short, the one that loses least comes before."""
    found = sorted(admitted, key=lambda choice: choice.prediction.step)
    near = [choice for choice in found if choice.prediction.step * _BETTER <= found[0].prediction.step]
    first = min(near, key=lambda choice: choice.prediction.error, default=None)
    return found if first is None else [first, *(choice for choice in found if choice is not first)]


def _pattern(name: str) -> str:
    """A shell pattern that only this name matches."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is_compressed(codec: str, layer: Layer) -> bool:
    import torch

    decision = Plan.parse(codec).decide(layer.name, layer.shape, getattr(torch, layer.dtype))
    return bool(decision.codec.stages)


def _fitting(profile: Profile, codec: str, budget: Quality) -> list[Layer]:
    """The layers that may travel through a codec."""
    return [
        layer
        for layer in profile.model.layers
        if _is_compressed(codec, layer)
        and budget.admits(codec, profile.figures(codec, layer.name), _reference(profile, layer))
    ]


def _reference(profile: Profile, layer: Layer) -> Figures | None:
    of_layers = profile.codecs.get(str(Codec.parse(REFERENCE)), {})
    return of_layers.get(layer.name)


def _by_layer(profile: Profile, codecs: Sequence[str], budget: Quality, uniform: Sequence[Choice]) -> Choice | None:
    """For each layer the admitted codec that costs it least; None if that is not better than one codec for all.

    Only codecs of the best two uniform plans and the cheapest for each layer take part: each further codec adds rounds.
    """
    if not uniform:
        return None
    fitting = {codec: {layer.name for layer in _fitting(profile, codec, budget)} for codec in codecs}
    rules: list[Rule] = []
    main = min(uniform, key=lambda choice: choice.prediction.step)
    for layer in profile.model.layers:
        costs = {codec: _cost(profile, codec, layer) for codec in codecs if layer.name in fitting[codec]}
        costs["none"] = _cost(profile, "none", layer)
        least = min(costs, key=lambda codec: costs[codec])
        kept = main.codec if costs.get(main.codec, float("inf")) <= 1.1 * costs[least] else least
        if kept != main.codec or layer.name in main.spared:
            rules.append(Rule(Codec.parse(kept), _pattern(layer.name)))
    rules.append(Rule(Codec.parse(main.codec)))
    plan = Plan(tuple(rules))
    prediction = predict(profile, plan)
    better = prediction.step <= _BETTER * main.prediction.step
    return Choice(BY_LAYER, plan, prediction) if better and len(rules) > 1 else None


def _cost(profile: Profile, codec: str, layer: Layer) -> float:
    """Seconds of work and of the wire for one layer, apart from latencies, which it shares."""
    chosen = Codec.parse(codec)
    if codec != "none" and not _is_compressed(codec, layer):
        chosen = Codec()
    sent = int(chosen.wire_bytes(layer.shape, profile.ranks))
    if not chosen.stages:
        sent = sent * layer.nbytes // max(4 * layer.numel, 1)  # sums have the type of the gradient
    kind = "exchange" if chosen.coders else "reduce"
    _, wire, _ = profile.link.cost(kind, sent, profile.ranks)
    compresses = bool(chosen.stages) and chosen.compresses(Spec.of(layer.shape))
    return wire + (profile.figures(codec, layer.name).seconds if compresses else 0.0)
