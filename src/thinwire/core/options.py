"""Options of a stage: declared once, checked at construction, printed in the one text form."""

import re
from dataclasses import MISSING, Field, field, fields
from typing import Any

from thinwire.errors import CodecError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")


def number(
    default: Any = MISSING, *, low: float, high: float, whole: bool = False, optional: bool = False, help: str
) -> Any:
    """A numeric option from `low` to `high`; `whole` takes integers only; `optional` also takes None."""
    return field(
        default=default, metadata={"low": low, "high": high, "whole": whole, "optional": optional, "help": help}
    )


def choice(default: str, *choices: str, help: str) -> Any:
    """An option that is one of a few words."""
    return field(default=default, metadata={"choices": choices, "help": help})


def switch(default: bool, *, help: str) -> Any:
    """An option that is true or false."""
    return field(default=default, metadata={"switch": True, "help": help})


def words(default: str | None, *, help: str) -> Any:
    """An option that is free text (a chain, a schedule); the stage checks what it means."""
    return field(default=default, metadata={"text": True, "help": help})


def check_options(stage: Any) -> None:
    """Refuse values that break the declared rules, naming the option, the value and the rule."""
    for option in fields(stage):
        value = getattr(stage, option.name)
        rule = _broken_rule(option, value)
        if rule:
            raise CodecError(f"{stage.name}({option.name}={print_value(value)}): {option.name} must be {rule}.")


def _broken_rule(option: "Field[Any]", value: Any) -> str | None:
    """The rule that `value` breaks, in words, or None."""
    meta = option.metadata
    if "choices" in meta:
        return None if value in meta["choices"] else "one of " + ", ".join(meta["choices"])
    if "switch" in meta:
        return None if isinstance(value, bool) else "true or false"
    if "text" in meta:
        return None if value is None or isinstance(value, str) else "text in quotes"
    if "low" in meta:
        return _broken_number(meta, value)
    return None


def _broken_number(meta: Any, value: Any) -> str | None:
    if value is None:
        return None if meta["optional"] else "given"
    low, high = meta["low"], meta["high"]
    right_type = isinstance(value, int if meta["whole"] else (int, float)) and not isinstance(value, bool)
    if right_type and low <= value <= high:
        return None
    what = "a whole number" if meta["whole"] else "a number"
    return f"{what} from {low:g} to {high:g}" if high != float("inf") else f"{what} of at least {low:g}"


def print_value(value: Any) -> str:
    """One option value in the text form that the parser reads back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if _WORD.match(value) and value not in ("none", "true", "false") else f"'{value}'"
    return repr(value)


def print_options(stage: Any) -> str:
    """`(bits=4, norm=l2)`: the options always shown, and those that differ from their default."""
    shown = [
        f"{f.name}={print_value(getattr(stage, f.name))}"
        for f in fields(stage)
        if getattr(stage, f.name) != f.default or (f.name in stage.shown and getattr(stage, f.name) is not None)
    ]
    return f"({', '.join(shown)})" if shown else ""
