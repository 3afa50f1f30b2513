"""Which parameter travels through which codec: rules by name, shape, size and type."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from thinwire.core.codec import Codec
from thinwire.core.context import STEADY
from thinwire.core.inputs import FLOAT_NAMES, FLOATS
from thinwire.core.spec import Spec
from thinwire.core.stage import Stage
from thinwire.errors import CodecError

_LARGE = Spec.of((1 << 15, 1 << 15))  # what every codec that compresses at all compresses
SMALL = 1024  # numbers below which a tensor is not worth compressing
_QUOTE = 'Put quotes around patterns and codecs: {match: "*.weight", codec: "qsgd(bits=4, norm=max)"}.'
_RULE_KEYS = ("match", "codec", "dim", "min_numel", "max_numel", "dtype", "small")


@dataclass(frozen=True)
class Rule:
    """A codec for the parameters that match; the first matching rule of a plan decides.

    Args:
        codec: The codec, or its text.
        match: A shell pattern of parameter names, such as `"layer?.*.weight"`.
        dim: Only parameters with this many dimensions.
        min_numel: Only parameters with at least this many elements.
        max_numel: Only parameters with at most this many elements.
        dtype: Only parameters of this type, such as `"float32"`.
        small: Compress also parameters of one dimension and those with fewer than 1,024 elements, which otherwise stay
            uncompressed.
    """

    codec: Codec  # or what Codec.parse takes
    match: str = "*"
    dim: int | None = None
    min_numel: int | None = None
    max_numel: int | None = None
    dtype: str | None = None
    small: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", Codec.parse(self.codec))
        if not isinstance(self.match, str):
            raise CodecError(f"match must be a pattern of parameter names, as text; got {self.match!r}.")
        for key in ("dim", "min_numel", "max_numel"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise CodecError(f"{key} must be a whole number of at least 0 in a rule; got {value!r}.")
        if self.dtype is not None and not isinstance(getattr(torch, str(self.dtype), None), torch.dtype):
            raise CodecError(f"dtype must name a type of torch, such as float32; got {self.dtype!r}.")
        if not isinstance(self.small, bool):
            raise CodecError(f"small must be true or false in a rule; got {self.small!r}.")

    def applies(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
        numel = torch.Size(shape).numel()
        return (
            fnmatchcase(name, self.match)
            and (self.dim is None or len(shape) == self.dim)
            and (self.min_numel is None or numel >= self.min_numel)
            and (self.max_numel is None or numel <= self.max_numel)
            and (self.dtype is None or str(dtype) == f"torch.{self.dtype}")
        )

    @property
    def compresses(self) -> bool:
        """Whether the codec is one that compresses (none, fp32 and momentum by itself are not)."""
        return self.codec.declined(_LARGE) is not None or self.codec.compresses(_LARGE)

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"match": self.match, "codec": str(self.codec)}
        conditions = {k: getattr(self, k) for k in ("dim", "min_numel", "max_numel", "dtype")}
        shown |= {k: v for k, v in conditions.items() if v is not None}
        return shown | ({"small": True} if self.small else {})


class Decision(NamedTuple):
    """What a plan decided for one parameter, and why."""

    name: str
    shape: tuple[int, ...]
    codec: Codec
    why: str
    left_out: bool = False  # by a rule whose codec compresses nothing, such as none

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def compressed(self) -> bool:
        """Whether it travels in fewer bytes, once the codec has started up."""
        return self.codec.compresses(Spec.of(self.shape))


@dataclass(frozen=True)
class Plan:
    """An ordered list of rules; a parameter that no rule matches stays uncompressed.

    Args:
        rules: The first rule that matches a parameter decides.

    Examples:
        >>> plan = thinwire.Plan.parse({"*embed*": "qsgd(bits=4)", "*": "powersgd(rank=4)"})
        >>> decision = plan.decide("layer1.weight", (512, 512))
        >>> print(decision.codec, "because of", decision.why)
        powersgd(rank=4) because of rule '*'
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for at, rule in enumerate(self.rules[:-1]):
            if rule == Rule(rule.codec, small=rule.small):
                raise CodecError(
                    f"rule {self.rules[at + 1].match!r} can never apply: rule '*' before it matches everything, and"
                    " the first rule that matches decides; put '*' last."
                )

    @staticmethod
    def parse(what: "PlanLike") -> "Plan":
        """Read a plan.

        Args:
            what: A codec for all parameters, a mapping of name patterns to codecs, a list of rules, the path of a
                YAML, TOML or JSON file with one of these, or a printed plan.
        """
        if isinstance(what, Plan):
            return what
        if isinstance(what, Path) or (isinstance(what, str) and what.endswith((".yaml", ".yml", ".toml", ".json"))):
            return Plan.parse(_read(Path(what)))
        if isinstance(what, str) and what.lstrip().startswith("{"):
            return Plan.parse(_printed(what))
        if isinstance(what, (Codec, Stage, str)):
            return Plan((Rule(Codec.parse(what)),))
        if isinstance(what, Mapping):
            if set(what) == {"rules"}:
                rules = what["rules"]
                return Plan() if isinstance(rules, Sequence) and not rules else Plan.parse(rules)
            return Plan(tuple(_rule(pattern, value) for pattern, value in what.items()))
        if isinstance(what, Sequence):
            return Plan(tuple(_rule("*", value) for value in what))
        raise CodecError(f"a plan is a codec, a mapping of patterns to codecs, or a file; got {type(what).__name__}.")

    def decide(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Decision:
        """The codec for one parameter, and why it was chosen.

        Args:
            name: The parameter's name.
            shape: Its shape.
            dtype: Its type.
        """
        for rule in self.rules:
            if rule.applies(name, shape, dtype):
                return Decision(name, tuple(shape), *_exempted(rule, shape, dtype), not rule.compresses)
        return Decision(name, tuple(shape), Codec(), "no rule matches")

    def decisions(self, parameters: Iterable[tuple[str, Tensor]]) -> list[Decision]:
        return [self.decide(name, tuple(p.shape), p.dtype) for name, p in parameters]

    def to_dict(self) -> dict[str, Any]:
        """The form that files have; `Plan.parse` reads it back."""
        return {"rules": [rule.to_dict() for rule in self.rules]}

    def __str__(self) -> str:
        if len(self.rules) == 1 and self.rules[0] == Rule(self.rules[0].codec):
            return str(self.rules[0].codec)
        return json.dumps(self.to_dict())


def _exempted(rule: Rule, shape: Sequence[int], dtype: torch.dtype) -> tuple[Codec, str]:
    numel = torch.Size(shape).numel()
    if dtype not in FLOATS:
        return Codec(), f"{dtype} is not {FLOAT_NAMES}"
    if not rule.codec.stages:
        return rule.codec, f"rule {rule.match!r}"
    if len(shape) < 2 and not rule.small:
        return Codec(), "one-dimensional"
    if numel < SMALL and not rule.small:
        return Codec(), f"small ({numel} < {SMALL})"
    return _what_works(rule.codec, Spec.of(tuple(shape)), f"rule {rule.match!r}")


def _what_works(codec: Codec, spec: Spec, rule: str) -> tuple[Codec, str]:
    """A codec and the reason for it, or none if its first stage always leaves such a tensor as it is."""
    declined = codec.declined(spec)
    if declined is None:
        return codec, rule
    first = codec.transforms[0]
    plain = first.declines(spec) is not None and not first.instead(STEADY, spec)
    return (Codec() if plain else codec), declined


def _rule(pattern: str, value: Any) -> Rule:
    """One rule from `codec text` or from a mapping with a codec and conditions."""
    if not isinstance(value, Mapping):
        return Rule(Codec.parse(value), pattern)
    unknown = [key for key in value if key not in _RULE_KEYS]
    if unknown:
        raise CodecError(f"a rule has no {unknown[0]!r}; it takes {', '.join(_RULE_KEYS)}.")
    if "codec" not in value:
        raise CodecError(f"the rule {dict(value)} names no codec; add codec: none (or another one).")
    options = {key: item for key, item in value.items() if key != "codec"}
    return Rule(Codec.parse(value["codec"]), **{"match": pattern, **options})


def _printed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as reason:
        raise CodecError(f"this text is neither a codec nor a printed plan: {reason}.") from reason


def _read(path: Path) -> Any:
    """The content of a YAML, TOML or JSON file."""
    try:
        text = path.read_text()
    except OSError as reason:
        raise CodecError(f"cannot read the plan {path}: {reason.strerror}.") from reason
    try:
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix == ".toml":
            return _toml(text)
        return _yaml(text)
    except ValueError as reason:
        raise CodecError(f"the plan {path} is not valid {path.suffix[1:]}: {reason}") from reason


def _yaml(text: str) -> Any:
    import yaml  # at use: importing thinwire stays cheap

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as reason:
        raise ValueError(f"{reason}\n{_QUOTE}") from reason
    for part in _texts(content):
        if part.count("(") != part.count(")"):
            raise ValueError(f"the parentheses of {part!r} do not match; YAML cuts bare texts at commas. {_QUOTE}")
    return content


def _texts(content: Any) -> Iterator[str]:
    """Every text in what a file holds, keys included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        yield from (part for item in content.items() for part in _texts(item))
    elif isinstance(content, Sequence):
        yield from (part for item in content for part in _texts(item))


def _toml(text: str) -> Any:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError as missing:  # Python 3.10
        raise CodecError("plans in TOML need Python 3.11; use YAML or JSON.") from missing
    return tomllib.loads(text)


PlanLike: TypeAlias = Plan | Codec | Stage | str | Path | Mapping[str, Any] | Sequence[Any]
