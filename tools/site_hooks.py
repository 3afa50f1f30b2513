"""Hooks of MkDocs: how the site differs from the Markdown files that people read in the repository.

- The home page is the README. Contributing, the change log and other pages of the project join the site.
- The navigation is the list of pages in docs/README.md; the API reference follows it.
- The API reference has a page for each section of docs/reference.md, made from docstrings.
- A file outside docs/ that a page links (records of benchmarks, examples) is copied into the site.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from thinwire import Stage
from thinwire.core.options import print_value

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LIST = DOCS / "README.md"
REFERENCE = DOCS / "reference.md"

# Pages outside docs/, by the path that they have in the site.
PROJECT = {
    "index.md": ROOT / "README.md",
    "project/contributing.md": ROOT / "CONTRIBUTING.md",
    "project/changelog.md": ROOT / "CHANGELOG.md",
    "project/security.md": ROOT / "SECURITY.md",
    "project/conduct.md": ROOT / "CODE_OF_CONDUCT.md",
}
# What users do not call, by class: kept out of the API reference.
INTERNAL = {
    "Codec": "working|prefix|tail|wire|specs|sum_spec|holds_behind",
    "GradientState": "bind|engine",
    "Handle": "__init__|enter|on_bucket|engine",
    "Slot": "open|hold|rescale",
}
ENDLESS = 1e9  # an upper limit of this size is none that anyone meets
LINK = re.compile(r"(?P<text>\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
GROUP = re.compile(r"^\*\*(?P<title>.+)\*\*$")
BULLET = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<target>[^)#]+)\)")
SECTION = re.compile(r"^## (?P<title>.+)$")
MODULE = re.compile(r"^### `(?P<module>[\w.]+)`$")  # names below it are not those of `thinwire` itself
NAMED = re.compile(r"^\| `(?P<name>\w+)` \|", re.MULTILINE)  # a row of the reference
ROW = re.compile(r"^ *\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: groups and pages of docs/README.md, then the API reference."""
    nav: list[Any] = [{"Home": "index.md"}]
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if group := GROUP.match(line):
            nav.append({group["title"]: []})
        elif bullet := BULLET.match(line):
            pages = next(iter(nav[-1].values()))
            pages.append({bullet["title"]: site_path(LIST, bullet["target"])})
    nav.append({"API reference": [{title: api_path(title)} for title in api_sections()]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the project's pages, the pages of the API reference, and what pages link outside docs/."""
    for path, source in PROJECT.items():
        files.append(File.generated(config, path, content=source.read_text(encoding="utf-8")))
    for title, names in api_sections().items():
        files.append(File.generated(config, api_path(title), content=api_page(title, names)))
    sources = {file.src_uri: Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path}
    for source in {**sources, **PROJECT}.values():
        for link in LINK.finditer(source.read_text(encoding="utf-8")):
            path, target = site_path(source, link["target"]), (source.parent / link["target"]).resolve()
            if path.startswith("files/") and target.is_file() and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the site; names of the reference lead to their entries."""
    here = page.file.src_uri
    source = PROJECT.get(here, DOCS / here)
    if here == "reference.md":
        paths = {path.rpartition(".")[2]: path for names in api_sections().values() for path in names}
        markdown = NAMED.sub(lambda row: f"| [`{row['name']}`][{paths[row['name']]}] |", markdown)

    def rewritten(link: re.Match[str]) -> str:
        path = site_path(source, link["target"])
        shown = os.path.relpath(path, PurePosixPath(here).parent)
        return f"{link['text']}{shown}{link['anchor'] or ''}"

    return LINK.sub(rewritten, unescaped(markdown))


def unescaped(markdown: str) -> str:
    """GitHub wants `a \\| b` for code with a bar in a table; here the backslash would be shown."""
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def site_path(source: Path, target: str) -> str:
    """Where the site has what a Markdown file of the repository links."""
    goal = (source.parent / target).resolve()
    for path, page in PROJECT.items():
        if goal == page:
            return path
    if goal == LIST:
        return "index.md"
    if goal.is_relative_to(DOCS) and goal.suffix != ".html":  # a report would take the place of its Markdown page
        return goal.relative_to(DOCS).as_posix()
    if not goal.is_relative_to(ROOT):
        raise PluginError(f"{source.relative_to(ROOT)} links {target}, which lies outside the repository.")
    return f"files/{goal.relative_to(ROOT).as_posix()}"


def api_sections() -> dict[str, list[str]]:
    """The sections of the reference and the names that their tables list, with their modules."""
    sections: dict[str, list[str]] = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if section := SECTION.match(line):
            module, names = "thinwire", sections.setdefault(section["title"], [])
        elif found := MODULE.match(line):
            module = found["module"]
        elif row := NAMED.match(line):
            names.append(f"{module}.{row['name']}")
    return sections


def api_path(title: str) -> str:
    return f"api/{title.lower().replace(' ', '-')}.md"


def api_page(title: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", *(api_entry(name) for name in names)]) + "\n"


def api_entry(path: str) -> str:
    """The docstring, with signature and members; a stage has a table of its options instead."""
    module, _, name = path.rpartition(".")
    thing = getattr(import_module(module), name)
    hidden = f', "!^({INTERNAL[name]})$"' if name in INTERNAL else ""
    is_stage = isinstance(thing, type) and issubclass(thing, Stage) and thing is not Stage
    called = str(name != "Handle" and not is_stage).lower()  # `attach` makes handles: their signature explains nothing
    options = [f'filters: ["!^_"{hidden}]', f"show_signature: {called}", f"merge_init_into_class: {called}"]
    options += ["members: false", "show_labels: false"] if is_stage else []
    entry = "\n      ".join((f"::: {path}\n    options:", *options))
    return f"{entry}\n\n{option_table(thing)}" if is_stage else entry


def option_table(stage: Any) -> str:
    """Name, default and meaning of a stage's options, as they are written in chains."""
    rows = []
    for option in fields(stage):
        default = "" if option.default is MISSING else f"`{print_value(option.default)}`"
        rows.append(f"| `{option.name}` | {default} | {option.metadata.get('help', '')}{limits(option.metadata)} |")
    head = f"In chains: `{stage.name}`" + (
        ", with these options:\n\n| option | default | meaning |\n|---|---|---|" if rows else ""
    )
    return "\n".join([head, *rows])


def limits(rule: Mapping[str, Any]) -> str:
    if "choices" in rule:
        return f" ({', '.join(rule['choices'])})"
    return f" ({rule['low']:g} to {rule['high']:g})" if rule.get("high", ENDLESS) < ENDLESS else ""
