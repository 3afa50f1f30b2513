"""The one text form of a chain: `topk(density=1/64) | rangefloat(bits=8) | huffman`."""

import difflib
import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from thinwire._names import NAMES as NAMES
from thinwire._names import OUTER_NAMES, load_names
from thinwire.core.stage import Stage
from thinwire.errors import CodecError

Maker = TypeVar("Maker")
ENTRY_POINTS = "thinwire.stages"  # the group in which packages declare their stages

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s*/\s*\d+)?)(?![A-Za-z_])
      | (?P<quoted>'[^']*'|"[^"]*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_\-]*)
      | (?P<mark>[|(),=])
    )""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*")
_LITERALS = {"true": True, "True": True, "false": False, "False": False, "none": None, "None": None}


def parse_links(text: str) -> list[Any]:
    """The stages (or whole presets) that a text names, in order; `none` names no stage."""
    tokens = _tokens(text)
    if not tokens:
        raise CodecError(f"a chain names at least one stage; got {text!r}; write none for no compression.")
    links: list[Any] = []
    at = 0
    while True:
        link, at = _link(text, tokens, at)
        if link is not None:
            links.append(link)
        if at == len(tokens):
            return links
        if tokens[at] != ("mark", "|"):
            raise CodecError(f"cannot read the chain {text!r}: expected '|' before {tokens[at][1]!r}.")
        at += 1


@lru_cache(maxsize=64)  # a stage that holds a text asks in every step; parts are frozen
def parse_parts(text: str) -> tuple[Any, ...]:
    """The settings and stages that a text names, those of presets too."""
    return tuple(part for link in parse_links(text) for part in getattr(link, "parts", (link,)))


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of one `name(option=value, ...)`; nothing is looked up."""
    tokens = _tokens(text)
    if not tokens or tokens[0][0] != "word":
        raise CodecError(f"cannot read {text!r}: write a name with options, such as sgd(lr=1).")
    options, at = _options(text, tokens, 2) if tokens[1:2] == [("mark", "(")] else (dict[str, Any](), 1)
    if at != len(tokens):
        raise CodecError(f"cannot read {text!r}: unexpected {tokens[at][1]!r} behind its options.")
    return tokens[0][1], options


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise CodecError(f"cannot read the chain {text!r}: unexpected {stripped[at:].strip()[:12]!r}.")
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind)))
        at = match.end()
    return tokens


def _link(text: str, tokens: list[tuple[str, str]], at: int) -> tuple[Any, int]:
    """One `name(option=value, ...)`, built, and the position behind it."""
    if at == len(tokens) or tokens[at][0] != "word":
        found = repr(tokens[at][1]) if at < len(tokens) else "the end"
        raise CodecError(f"cannot read the chain {text!r}: expected a stage name, found {found}.")
    name, options = tokens[at][1], dict[str, Any]()
    at += 1
    if at < len(tokens) and tokens[at] == ("mark", "("):
        options, at = _options(text, tokens, at + 1)
    if name == "none" and options:
        raise CodecError(f"none has no option {next(iter(options))!r}; it takes none.")
    return (None if name == "none" else make(name, options)), at


def _options(text: str, tokens: list[tuple[str, str]], at: int) -> tuple[dict[str, Any], int]:
    options: dict[str, Any] = {}
    while at < len(tokens) and tokens[at] != ("mark", ")"):
        kinds = [kind for kind, _ in tokens[at : at + 3]]
        if len(kinds) < 3 or kinds[0] != "word" or tokens[at + 1][1] != "=" or kinds[2] == "mark":
            raise CodecError(f"cannot read the chain {text!r}: expected option=value at {tokens[at][1]!r}.")
        if tokens[at][1] in options:
            raise CodecError(f"cannot read the chain {text!r}: the option {tokens[at][1]!r} is given twice.")
        options[tokens[at][1]] = _value(*tokens[at + 2])
        at += 3
        if at < len(tokens) and tokens[at] == ("mark", ","):
            at += 1
        elif at < len(tokens) and tokens[at] != ("mark", ")"):
            raise CodecError(f"cannot read the chain {text!r}: expected ',' or ')' before {tokens[at][1]!r}.")
    if at == len(tokens):
        raise CodecError(f"cannot read the chain {text!r}: a ')' is missing.")
    return options, at + 1


def _value(kind: str, token: str) -> Any:
    if kind == "quoted":
        return token[1:-1]
    if kind == "word":
        return _LITERALS.get(token, token)
    if "/" in token:
        above, below = (float(part) for part in token.split("/"))
        if below == 0:
            raise CodecError(f"the fraction {token} divides by zero.")
        return above / below
    return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)


def make(name: str, options: dict[str, Any]) -> Any:
    """The stage or preset of this name; unknown names and options are answered with the known ones."""
    maker = lookup(name)
    known = option_names(maker)
    for option in options:
        if option not in known:
            takes = f"its options are {', '.join(known)}" if known else "it takes none"
            raise CodecError(f"{name} has no option {option!r}; {takes}.")
    missing = [o for o in required_options(maker) if o not in options]
    if missing:
        raise CodecError(
            f"{name} needs {' and '.join(missing)}; write {name}({', '.join(f'{m}=...' for m in missing)})."
        )
    return maker(**options)


def lookup(name: str) -> Any:
    if name not in NAMES:
        load_names()
    if name not in NAMES and name in installed_names():
        NAMES[name] = load_installed(name)
    if name in OUTER_NAMES:
        raise CodecError(
            f"{name} is no codec but a preset of outer steps; use thinwire.attach_outer(model, optimizer, {name!r})."
        )
    if name not in NAMES:
        known = sorted({*NAMES, *installed_names(), "none"})
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise CodecError(f"there is no stage or preset {name!r}; {hint}known are {', '.join(known)}.")
    return NAMES[name]


def register(maker: Maker) -> Maker:
    """Give a stage class its `name`, or a function that returns a `Codec` its own name, in all chains of this process.

    It returns what it was given, so that it can be a decorator.
    """
    load_names()  # the names of thinwire are taken
    name = str(getattr(maker, "name", "") if isinstance(maker, type) else getattr(maker, "__name__", ""))
    _check_maker(name, maker, f"cannot register {maker!r}")
    taken = NAMES.get(name, maker)
    if _origin(taken) != _origin(maker):  # a class that is defined anew, as in a notebook, replaces itself
        raise CodecError(f"the name {name!r} belongs to {'.'.join(_origin(taken))}; choose another name.")
    NAMES[name] = maker
    return maker


def _origin(maker: Any) -> tuple[str, str]:
    return str(maker.__module__), str(maker.__qualname__)


def installed_names() -> set[str]:
    """Names that installed packages declare as entry points of `thinwire.stages`; nothing is loaded."""
    return entry_points(group=ENTRY_POINTS).names


def package_of(name: str) -> str:
    """The installed packages that declare a name, with their versions."""
    return " and ".join(_package(entry) for entry in entry_points(group=ENTRY_POINTS, name=name))


def load_installed(name: str) -> Any:
    """The stage or preset that a package declares; a package that does not give one is named in the error."""
    declared = list(entry_points(group=ENTRY_POINTS, name=name))
    if len(declared) != 1:
        raise CodecError(f"the packages {package_of(name)} all declare the stage {name!r}; keep only one of them.")
    entry = declared[0]
    fault = f"the stage {name!r} of the package {_package(entry)} cannot be used"
    try:
        maker = entry.load()
    except Exception as error:  # a module of somebody else: anything may happen
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise CodecError(f"{fault}: {why}; repair or remove that package.") from error
    _check_maker(name, maker, fault)
    return maker


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _check_maker(name: str, maker: Any, fault: str) -> None:
    """Refuse what is neither a stage class nor a function, and names that chains cannot spell."""
    if not _NAME.fullmatch(name) or name in _LITERALS:
        raise CodecError(f"{fault}: {name!r} is no name; write letters, digits, _ or -, with a letter first.")
    if not isinstance(maker, type):
        if not inspect.isfunction(maker):
            raise CodecError(f"{fault}: it is neither a stage class nor a function that returns a Codec.")
    elif not issubclass(maker, Stage) or "__dataclass_fields__" not in vars(maker):
        raise CodecError(f"{fault}: {maker.__name__} must be a subclass of Stage with @dataclass(frozen=True).")
    elif maker.name != name:
        raise CodecError(f"{fault}: its class has the name {maker.name!r}; both names must be the same.")


def option_names(maker: Any) -> list[str]:
    return [f.name for f in fields(maker)] if is_dataclass(maker) else list(inspect.signature(maker).parameters)


def required_options(maker: Any) -> list[str]:
    if is_dataclass(maker):
        return [f.name for f in fields(maker) if f.default is MISSING]
    return [p.name for p in inspect.signature(maker).parameters.values() if p.default is inspect.Parameter.empty]
