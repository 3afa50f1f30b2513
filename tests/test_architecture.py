"""The shape of the project: who may import whom, how long things may be, and what files and wheels may contain."""

import ast
import importlib.util
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from thinwire.core.stage import DeliveryStage, InputStage, Stage, Transform, WireCoder

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"thinwire": ROOT / "src" / "thinwire", "thinwire_lab": ROOT / "packages/thinwire-lab/src/thinwire_lab"}

# Lowest first. A unit imports from its own row or the rows before it; two units of one row never import each other
# both ways. The façade is thinwire/__init__.py: it offers what api gathers, and only what lies above may use it.
# Units of thinwire_lab have its name in front. The library never imports one of them.
FACADE = "__init__"
LAYERS = (
    {"_names", "_version", "errors"},
    {"_native", "kernels"},
    {"machine"},
    {"core"},
    {"stages"},
    {"presets"},
    {"worlds"},
    {"ddp", "tuning"},
    {"api", "extend"},
    {FACADE},
    {"cli"},
    {"__main__"},
    {f"thinwire_lab.{name}" for name in (FACADE, "lab", "recipes", "bench", "compare", "report")},
    {"thinwire_lab.cli"},
)
# The same inside core. What a module imports for types only does not count.
CORE_LAYERS = (
    {"spec", "buffers", "ops", "options", "inputs", "source"},
    {"checks", "context"},
    {"fast"},
    {"profiling", "stage", "blockwise"},
    {"settings", "rules", "text", "schedule", "message", "coalesced"},
    {"shards"},
    {"reducers"},
    {"codec"},
    {"slot", "plan", "route"},
    {"step"},
    {"average"},
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
NO_NETWORK = {"errors", "kernels", "core", "stages", "presets"}

MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_CONTRACT_MEMBERS = 20  # that the author of a stage must read
MAX_AVERAGE_BRANCHES = 25  # core/average.py is read first: choices for speed belong in core/route.py
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc"}
MAX_WHEEL_BYTES = 1_500_000  # of the library, compressed


def unit_of(parts: tuple[str, ...]) -> str:
    """The layer of a module: ('thinwire', 'core', 'slot') and ('thinwire', 'core', '__init__') both belong to core."""
    package, *inside = parts
    unit = inside[0] if inside else FACADE
    return unit if package == "thinwire" else f"{package}.{unit}"


def dotted_imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports; `package` is where its relative imports start."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*base, *(node.module.split(".") if node.module else ())))
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def imported_unit(name: str) -> str | None:
    """The layer behind an imported name, the façade for a public name, None for other packages."""
    head, *rest = name.split(".")
    if head not in PACKAGES:
        return None
    unit = unit_of((head, *rest[:1]))
    return unit if rest and (unit in LEVEL or is_module(PACKAGES[head] / rest[0])) else unit_of((head,))


def is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def import_faults(sources: dict[tuple[str, ...], str]) -> list[str]:
    """What is wrong with the imports of these modules (package and path inside it -> source text)."""
    faults, sideways = [], set()
    for path, text in sources.items():
        unit = unit_of(path)
        if unit not in LEVEL:
            faults.append(f"{'/'.join(path)}: {unit} has no place in LAYERS")
            continue
        for line, name in dotted_imports(ast.parse(text), path[:-1]):
            target = imported_unit(name)
            if target is None or target == unit:
                continue
            if target not in LEVEL or LEVEL[target] > LEVEL[unit]:
                faults.append(f"{'/'.join(path)}:{line}: {unit} must not import {target}")
            elif LEVEL[target] == LEVEL[unit]:
                sideways.add((unit, target))
    faults += [f"{a} and {b} import each other" for a, b in sorted(sideways) if a < b and (b, a) in sideways]
    return faults


def core_faults(sources: dict[str, str]) -> list[str]:
    """Modules of core that import from their own row or a later one, or inside a function."""
    level = {module: number for number, modules in enumerate(CORE_LAYERS) for module in modules}
    faults = []
    for module, text in sources.items():
        tree = ast.parse(text)
        typing = {id(n) for node in tree.body if isinstance(node, ast.If) for n in ast.walk(node)}
        late = {id(n) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for n in ast.walk(node)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or id(node) in typing or not node.module:
                continue
            target = node.module.removeprefix("thinwire.core.").split(".")[0]
            if not node.module.startswith("thinwire.core.") or target == module:
                continue
            if level[target] >= level[module]:
                faults.append(f"{module} must not import {target}")
            if id(node) in late:
                faults.append(f"{module} imports {target} inside a function")
    return faults


def network_faults(text: str) -> list[int]:
    """The lines of a module that reach for torch.distributed, imported or as an attribute."""
    tree = ast.parse(text)
    lines = {n for n, name in dotted_imports(tree, ()) if f"{name}.".startswith("torch.distributed.")}
    lines |= {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed"
    }
    return sorted(lines)


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
    return [name for name in dir(of) if not name.startswith("_")]


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


# A directory of somebody's machine; the look-behind spares addresses and paths relative to something else.
MACHINE_PATH = re.compile(r"(?<![\w.~$})>*-])/(?:home|Users|root|work|workspace|tmp|opt|mnt)/\w")


def project_files() -> list[Path]:
    """Everything that is, or would be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive: no repository, or no git
        listed = [
            str(p.relative_to(ROOT))
            for d in ("src", "packages", "tests", "native", "docs")
            for p in (ROOT / d).rglob("*")
        ]
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def package_sources() -> dict[tuple[str, ...], str]:
    return {
        (name, *path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for name, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
    }


SOURCES = package_sources()


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


@pytest.mark.parametrize("of", [Stage, Transform, WireCoder, InputStage, DeliveryStage])
def test_the_contract_of_a_stage_is_small(of: type) -> None:
    """Fast paths are objects of their own, so that the contract does not grow with them."""
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


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    faults = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # pictures and golden bytes
            continue
        faults += [
            f"{path.relative_to(ROOT)}:{n}" for n, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)
        ]
    assert faults == []


@pytest.mark.parametrize("place", ["home/me/x", "work/data", "tmp/venv", "Users/me"])
def test_a_place_on_a_machine_is_found(place: str) -> None:
    assert MACHINE_PATH.search(f"see /{place}")
    assert not MACHINE_PATH.search(f"https://example.org/{place}")


def wheel_files(package: Path) -> list[Path]:
    """What a wheel of this package would hold beside compiled kernels: the project's files in its folder."""
    return [path for path in project_files() if path.is_relative_to(package)]


def compressed_bytes(paths: Iterable[Path]) -> int:
    return sum(len(zlib.compress(path.read_bytes())) for path in paths)


def test_the_library_is_code_alone() -> None:
    """No data set, no template of a report: they come with thinwire-lab."""
    files = wheel_files(PACKAGES["thinwire"])
    assert PACKAGES["thinwire"] / "__init__.py" in files
    assert [path for path in files if path.suffix != ".py" and path.name != "py.typed"] == []


def test_the_wheel_of_the_library_is_small() -> None:
    spec = importlib.util.find_spec("thinwire._native")
    kernels = [Path(spec.origin)] if spec is not None and spec.origin is not None else []
    assert compressed_bytes([*wheel_files(PACKAGES["thinwire"]), *kernels]) < MAX_WHEEL_BYTES


def test_the_data_set_alone_would_exceed_the_limit() -> None:
    """So it cannot slip in."""
    assert compressed_bytes(PACKAGES["thinwire_lab"].rglob("*.xz")) > MAX_WHEEL_BYTES
