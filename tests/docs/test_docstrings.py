"""What an editor shows for a public name explains every argument, and the examples in it run."""

import doctest
import inspect
import re
from typing import Any

import pytest

import thinwire
from tests.docs.pages import prelude_of
from tests.docs.test_blocks import elsewhere as elsewhere

ENTRANCES = ("attach", "average", "average_gradients", "simulate", "Codec", "Plan", "Slot")
METHODS = ("Codec.parse", "Codec.encode", "Codec.decode", "Codec.wire_bytes", "Plan.parse", "Plan.decide")
EXPLAINED = (*ENTRANCES, *METHODS, "Rule", "Outcome", "GradientState")
MENTIONED = ("use", "log_to", "load_state_dict", "load_distributed")  # methods of Handle


def named(path: str) -> Any:
    found: Any = thinwire
    for part in path.split("."):
        found = getattr(found, part)
    return found


def arguments_of(thing: Any) -> list[str]:
    return [name for name in inspect.signature(thing).parameters if name != "self"]


def explained(docstring: str) -> list[str]:
    """The names under `Args:`, in order."""
    section = re.search(r"^Args:\n(?P<body>(?:    .*\n|\n)*)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    return re.findall(r"^    (\w+): \S", section["body"], re.MULTILINE) if section else []


@pytest.mark.parametrize("path", EXPLAINED)
def test_every_argument_is_explained_in_order(path: str) -> None:
    assert explained(named(path).__doc__) == arguments_of(named(path))


@pytest.mark.parametrize("method", MENTIONED)
def test_methods_of_the_handle_mention_their_arguments(method: str) -> None:
    found = getattr(thinwire.Handle, method)
    assert [name for name in arguments_of(found) if f"`{name}`" not in found.__doc__] == []


@pytest.mark.parametrize("path", [*ENTRANCES, "Handle"])
@pytest.mark.usefixtures("elsewhere")
def test_the_examples_run(path: str) -> None:
    prelude = prelude_of("README.md")
    assert prelude is not None
    names: dict[str, Any] = {"thinwire": thinwire}
    exec(compile(prelude.read_text(encoding="utf-8"), str(prelude), "exec"), names)
    test = doctest.DocTestParser().get_doctest(inspect.cleandoc(named(path).__doc__), names, path, None, None)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    try:
        failed, tried = runner.run(test, out=told.append, clear_globs=False)
    finally:
        for value in names.values():
            if isinstance(value, thinwire.Handle):
                value.close()
    assert tried > 0
    assert not failed, "".join(told)
