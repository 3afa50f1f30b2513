"""Who may import whom: the layers of the project, and what a module imports that it should not."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
    {"outer", "fsdp"},
    {"planner"},
    {"dispatch"},
    {"integrations"},
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
    {"selection"},
    {"step"},
    {"average", "scatter"},
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
NO_NETWORK = {"errors", "kernels", "core", "stages", "presets"}


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


def package_sources() -> dict[tuple[str, ...], str]:
    return {
        (name, *path.relative_to(folder).with_suffix("").parts): path.read_text(encoding="utf-8")
        for name, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
    }


SOURCES = package_sources()


def late_circles(sources: dict[tuple[str, ...], str]) -> list[str]:
    """Imports inside functions that would be a circle at the top of their modules."""
    names = {".".join(path).removesuffix(".__init__"): path for path in sources}
    early: dict[str, set[str]] = {}
    late: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(sources[path])
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        late[name] = {module for function in functions for module in _modules(function, names)}
        early[name] = {module for node in tree.body if not _for_types(node) for module in _modules(node, names, False)}
    return [f"{a} imports {b} inside a function" for a in late for b in late[a] if a in _reached(b, early)]


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _modules(node: ast.AST, names: dict[str, tuple[str, ...]], inside: bool = True) -> Iterator[str]:
    """The modules of the project that are imported here; without those of functions if not `inside`."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from {f"{node.module}.{alias.name}" for alias in node.names} & names.keys() or {
            node.module
        } & names.keys()
    elif isinstance(node, ast.Import):
        yield from {alias.name for alias in node.names} & names.keys()
    elif inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _modules(child, names, inside)


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    found, left = set[str](), [start]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += imports[name]
    return found
