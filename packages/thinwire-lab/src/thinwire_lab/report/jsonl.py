"""JSON as it comes from files: one object in each line, and every fault is told with its file and line.

Stricter than `json.loads`, which takes NaN, numbers of any size and lone surrogates, and ends in a RecursionError where
lists are nested deeply.
"""

import json
import math
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from thinwire.errors import ThinwireError

T = TypeVar("T")

MAX_DEPTH = 32  # lists and objects inside each other; records have 4


class RecordError(ThinwireError, ValueError):
    """A file of results that cannot be read or is not one."""


class NotJSON(RecordError):
    """Text that is not JSON, as a line that was cut short is."""


def parse(data: bytes) -> Any:
    """The value of JSON; RecordError says in half a sentence what is wrong."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise NotJSON("it is not UTF-8 text") from None
    except RecursionError:
        raise RecordError(f"it has lists or objects nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as reason:
        raise NotJSON(f"it is not JSON ({reason.msg} at line {reason.lineno}, column {reason.colno})") from None
    except RecordError:
        raise
    except ValueError:  # int() refuses thousands of digits
        raise RecordError("it has a number with too many digits") from None
    _check(value)
    return value


def _refuse(constant: str) -> NoReturn:
    raise RecordError(f"it has {constant}, which is not JSON; unknown numbers are null")


def _check(value: Any) -> None:
    """Refuse what programs downstream cannot take; without recursion."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise RecordError(f"it has lists or objects nested deeper than {MAX_DEPTH}")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str) and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise RecordError("it has half of a surrogate pair, which is not text")
        elif isinstance(item, float) and not math.isfinite(item):
            raise RecordError("it has a number that is too large")
        elif isinstance(item, int) and abs(item) >= 1 << 63:
            raise RecordError("it has an integer of more than 64 bits")


def read_file(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as reason:
        raise RecordError(f"cannot read the results {path}: {reason.strerror or reason}.") from reason


def read_lines(path: str | Path, writer: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each line; `writer` is the command that writes such files.

    A last line that was cut short (it is not JSON and has no end) is left out.
    """
    lines = read_file(path).split(b"\n")
    rest = lines.pop()  # behind the last end of a line: nothing, or a line that was cut short
    for number, line in enumerate(lines, 1):
        try:
            yield number, parse(line)
        except RecordError as reason:
            raise line_error(path, number, reason, writer) from None
    if rest:
        try:
            value = parse(rest)
        except NotJSON:
            return
        except RecordError as reason:
            raise line_error(path, len(lines) + 1, reason, writer) from None
        yield len(lines) + 1, value


def end_last_line(path: Path) -> None:
    """Remove a line that was cut short, so that what follows begins on its own."""
    if path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def read_document(path: str | Path, kind: type[T], writer: str) -> T:
    """A dataclass from a file that is JSON as a whole."""
    data = read_file(path)
    try:
        return build(kind, parse(data))
    except RecordError as reason:
        raise RecordError(f"{path}: {reason}; give a file that `{writer}` wrote.") from None


def line_error(path: str | Path, number: int, reason: object, writer: str) -> RecordError:
    return RecordError(f"{path}, line {number}: {reason}; give a file that `{writer}` wrote.")


def to_line(value: Any) -> str:
    """One line of JSON; what is not a finite number becomes null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def build(kind: type[T], given: Any) -> T:
    """An instance of a dataclass; fields that it does not know (of a later version) are left out.

    RecordError says which field is missing or of the wrong type.
    """
    name = kind.__name__.lower()
    if not isinstance(given, dict):
        raise RecordError(f"a {name} must be dict, not {type(given).__name__}")
    hints = get_type_hints(kind)
    values = {}
    for f in fields(kind):  # type: ignore[arg-type]  # T is a dataclass, which types cannot say
        if f.name in given:
            values[f.name] = _checked(given[f.name], hints[f.name], f.name)
        elif f.default is MISSING:
            raise RecordError(f"a record of the kind {name} needs the field {f.name!r}")
    return kind(**values)


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value if it is of the declared type, with dataclasses inside it built."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value)
    origin = get_origin(hint) or hint
    if origin is float and type(value) is int:
        return float(value)
    if not isinstance(value, origin) or (origin is int and isinstance(value, bool)):
        raise RecordError(f"the field {name!r} must be {origin.__name__}, not {type(value).__name__}")
    if origin is list:
        return [_checked(item, get_args(hint)[0], f"{name}[{at}]") for at, item in enumerate(value)]
    if origin is dict:
        return {key: _checked(item, get_args(hint)[1], f"{name}.{key}") for key, item in value.items()}
    return value
