"""The shape of the project: who may import whom, and how long things may be."""

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.layers import (
    CORE_LAYERS,
    FACADE,
    NO_NETWORK,
    SOURCES,
    core_faults,
    import_faults,
    late_circles,
    network_faults,
    unit_of,
)
from thinwire.core.fast import BlockCoder, FastPath, MessageCoder, PartCoder, Parts
from thinwire.core.stage import (
    DecidingStage,
    DeliveryStage,
    InputStage,
    ScheduledStage,
    Stage,
    Transform,
    WireCoder,
)

MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_CONTRACT_MEMBERS = 20  # that the author of a stage must read
MAX_AVERAGE_BRANCHES = 25  # core/average.py is read first: choices for speed belong in core/route.py
CONTRACT: tuple[type, ...] = (
    *(Stage, Transform, WireCoder, InputStage, DeliveryStage, DecidingStage, ScheduledStage),
    *(FastPath, MessageCoder, BlockCoder, PartCoder, Parts),
)
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc"}


def function_lengths(text: str) -> Iterator[tuple[str, int]]:
    """Lines of each function without its docstring: to explain arguments makes no function harder to read."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, lines_of(node) - (lines_of(node.body[0]) if ast.get_docstring(node) else 0)


def lines_of(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def public_members(of: type) -> list[str]:
    """What a class shows those who write or use its subclasses, its own names and inherited ones."""
    names = {*dir(of), *(name for each in of.__mro__ for name in vars(each).get("__annotations__", {}))}
    return sorted(name for name in names if not name.startswith("_"))


def branch_points(text: str) -> int:
    """Statements and expressions that choose between two ways; each operand of and/or after the first is one."""
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
        elif isinstance(node, ast.match_case | ast.If | ast.IfExp | ast.While | ast.ExceptHandler):
            count += 1
    return count


def test_imports_go_one_way() -> None:
    assert import_faults(SOURCES) == []


def test_imports_inside_core_go_one_way() -> None:
    every = [(p[2], text) for p, text in SOURCES.items() if p[:2] == ("thinwire", "core") and p[2] != "__init__"]
    assert {module for module, _ in every} == set().union(*CORE_LAYERS)
    assert [fault for module, text in every for fault in core_faults({module: text})] == []


def test_a_wrong_import_inside_core_is_found() -> None:
    assert core_faults({"stage": "from thinwire.core.codec import Codec"}) == ["stage must not import codec"]
    late = "def f() -> None:\n    from thinwire.core.spec import Spec"
    assert core_faults({"stage": late}) == ["stage imports spec inside a function"]


def test_no_import_inside_a_function_hides_a_circle() -> None:
    assert late_circles(SOURCES) == []


def test_a_hidden_circle_is_found() -> None:
    sources: dict[tuple[str, ...], str] = {
        ("thinwire", "a"): "def f() -> None:\n    from thinwire.c import late",
        ("thinwire", "b"): "import thinwire.a",
        ("thinwire", "c"): "from thinwire import b\nif TYPE_CHECKING:\n    import thinwire.d",
        ("thinwire", "d"): "def f() -> None:\n    import thinwire.c",
    }
    assert late_circles(sources) == ["thinwire.a imports thinwire.c inside a function"]


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        (("thinwire", "kernels", "quantise"), "from thinwire.core.slot import Slot", "kernels must not import core"),
        (("thinwire", "kernels", "quantise"), "from ..core import slot", "kernels must not import core"),
        (
            ("thinwire", "stages", "pca"),
            "def f() -> None:\n    import thinwire.worlds.simulated",
            "stages must not import worlds",
        ),
        (("thinwire", "core", "codec"), "from thinwire import stages", "core must not import stages"),
        (("thinwire", "core", "codec"), "from thinwire import Codec", "core must not import __init__"),
        (("thinwire", "__init__"), "from .cli import main", "__init__ must not import cli"),
        (("thinwire", "cli", "doctor"), "import thinwire_lab.lab", "cli must not import thinwire_lab.lab"),
        (("thinwire", "cli", "doctor"), "import thinwire_lab", "cli must not import thinwire_lab.__init__"),
        (
            ("thinwire_lab", "lab", "rates"),
            "from ..cli import app",
            "thinwire_lab.lab must not import thinwire_lab.cli",
        ),
        (("thinwire_lab", "colours"), "", "thinwire_lab.colours has no place in LAYERS"),
        (("thinwire", "colours"), "", "colours has no place in LAYERS"),
    ],
)
def test_a_wrong_import_is_found(path: tuple[str, ...], text: str, fault: str) -> None:
    (found,) = import_faults({path: text})
    assert found.endswith(fault)


def test_a_circle_within_a_row_is_found() -> None:
    circle: dict[tuple[str, ...], str] = {
        ("thinwire", "ddp", "hook"): "import thinwire.tuning",
        ("thinwire", "tuning", "tuner"): "from thinwire.ddp.lane import Lane",
    }
    assert import_faults(circle) == ["ddp and tuning import each other"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("thinwire", "core", "codec"), "from thinwire.kernels import quantise\nfrom .slot import Slot\nimport torch"),
        (("thinwire", "__init__"), "from thinwire.core.codec import Codec\nfrom .ddp import attach"),
        (("thinwire", "cli"), "import thinwire\nfrom thinwire import Codec, core"),
        (
            ("thinwire_lab", "recipes", "loop"),
            "from ..report.record import Record\nfrom thinwire.core.slot import Slot",
        ),
    ],
)
def test_a_right_import_passes(path: tuple[str, ...], text: str) -> None:
    assert import_faults({path: text}) == []


@pytest.mark.parametrize("path", [p for p in SOURCES if unit_of(p) in NO_NETWORK], ids="/".join)
def test_the_data_path_does_not_know_the_network(path: tuple[str, ...]) -> None:
    assert network_faults(SOURCES[path]) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed import all_reduce",
        "import torch\ntorch.distributed.barrier()",
    ],
)
def test_use_of_the_network_is_found(text: str) -> None:
    assert network_faults(text) != []


@pytest.mark.parametrize("path", SOURCES, ids="/".join)
def test_modules_and_functions_are_short(path: tuple[str, ...]) -> None:
    text = SOURCES[path]
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    assert [name for name, lines in function_lengths(text) if lines > MAX_FUNCTION_LINES] == []


@pytest.mark.parametrize("of", CONTRACT)
def test_the_contract_of_a_stage_is_small(of: type) -> None:
    """Fast paths are objects of their own, so that the contract of a stage does not grow with them."""
    members = public_members(of)
    assert 0 < len(members) <= MAX_CONTRACT_MEMBERS, members


def test_the_average_of_a_tensor_can_be_read_at_once() -> None:
    text = SOURCES["thinwire", "core", "average"]
    assert branch_points(text) <= MAX_AVERAGE_BRANCHES
    assert dict(function_lengths(text))["average"] <= MAX_FUNCTION_LINES


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("x = 1", 0),
        ("if a:\n    pass\nelif b:\n    pass\nelse:\n    pass", 2),
        ("x = 1 if a and b or c else 2", 3),
        ("x = [i for i in y if a if b]", 2),
        ("while a and b:\n    pass", 2),
        ("match a:\n    case 1:\n        pass\n    case _:\n        pass", 2),
    ],
)
def test_branch_points_are_counted(text: str, count: int) -> None:
    assert branch_points(text) == count


def test_members_are_counted_with_inherited_ones() -> None:
    class Base:
        number: int = 0
        _hidden = 1

        def method(self) -> None: ...

    class Derived(Base):
        other = 2

    assert public_members(Derived) == ["method", "number", "other"]


def test_a_docstring_adds_no_length_and_code_does() -> None:
    text = 'def f() -> int:\n    """One.\n\n    Two.\n    """\n    return 1\n\n\ndef g() -> None:\n    f()\n    f()\n'
    assert dict(function_lengths(text)) == {"f": 2, "g": 3}


def test_module_names_say_something() -> None:
    assert [p for p in SOURCES if EMPTY_NAMES & {part.lstrip("_") for part in p}] == []
    top = {p[1] for p in SOURCES} - {FACADE, "__main__"}
    assert top & sys.stdlib_module_names == set()
