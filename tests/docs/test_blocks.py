"""Every fenced block of the documentation works: it is executed here, or says on the line before why it is not."""

import json
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml

from tests.docs.pages import ROOT, Block, blocks_of, pages, prelude_of
from thinwire import Handle, Plan

# Beginnings of commands that are quick and change nothing; any other command needs a marker.
QUICK = (["codecs"], ["doctor"], ["--version"], ["--help"])
SHOWN = {"text"}  # what programs print, and pictures: nothing to execute

PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages()}
BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own for what a page writes; process groups and settings do not outlive it."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


def commands_of(block: Block) -> list[list[str]]:
    """The commands of a shell block as lists of words; comments and line ends are the shell's."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def is_quick(words: list[str]) -> bool:
    """A command of thinwire that only tells something."""
    if words[0] != "thinwire":
        return False
    return words[-1] == "--help" or any(words[1 : 1 + len(start)] == start for start in QUICK)


def is_executable(block: Block) -> bool:
    if block.language == "sh":
        return all(is_quick(words) for words in commands_of(block))
    return block.language in ("python", "yaml", "json")


def run_python(block: Block, names: dict[str, Any]) -> None:
    prelude = prelude_of(block.page)
    if prelude is not None:
        exec(compile(prelude.read_text(encoding="utf-8"), str(prelude), "exec"), names)
    exec(compile("\n" * block.line + block.text, str(ROOT / block.page), "exec"), names)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`thinwire ...` as `python -m thinwire ...`, in this process."""
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("thinwire", run_name="__main__")
    assert not end.value.code, f"{shlex.join(words)} ended with {end.value.code}"


def read_data(block: Block) -> None:
    """YAML and JSON must be readable, and a plan if they look like one."""
    data = yaml.safe_load(block.text) if block.language == "yaml" else json.loads(block.text)
    if isinstance(data, dict) and "rules" in data:
        Plan.parse(data)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("elsewhere")
def test_the_blocks_of_a_page_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in BLOCKS:
            if block.page != page or block.reason or block.language in SHOWN:
                continue
            if block.language == "python":
                run_python(block, names)
            elif block.language == "sh":
                for words in commands_of(block):
                    run_command(words, monkeypatch)
            else:
                read_data(block)
    finally:
        for value in names.values():
            if isinstance(value, Handle):
                value.close()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_executed_or_says_why_not(block: Block) -> None:
    assert block.language in SHOWN or is_executable(block) or block.reason, (
        f"{block}: this {block.language or 'block without a language'} is not executed;"
        " write <!-- not executed: reason --> on the line before it, or make it a block of text."
    )


def test_a_block_that_is_neither_is_found() -> None:
    page = "```sh\nmake demo\n```\n\n<!-- not executed: slow -->\n```sh\nmake demo\n```\n\n```\nx = 1\n```\n"
    found = list(blocks_of("page.md", page))
    assert [(b.language, b.reason) for b in found] == [("sh", None), ("sh", "slow"), ("", None)]
    assert not any(is_executable(block) for block in found)


def test_a_fence_that_stays_open_is_found() -> None:
    with pytest.raises(AssertionError, match="never closed"):
        list(blocks_of("page.md", "```python\nx = 1\n"))


def test_a_marker_needs_a_reason_and_the_line_before() -> None:
    assert [b.reason for b in blocks_of("p", "<!-- not executed:  -->\n```sh\nls\n```\n")] == [None]
    assert [b.reason for b in blocks_of("p", "<!-- not executed: slow -->\n\n```sh\nls\n```\n")] == [None]
