"""`thinwire doctor`: facts, marks and a verdict."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from typer.testing import CliRunner

from thinwire.cli import app

WELL: dict[str, Any] = {
    "thinwire": "1.0",
    "python": "3.12",
    "torch": "2.13",
    "system": "Linux",
    "processor": "fast",
    "cores": 8,
    "torch_threads": 8,
    "memory_gb": 64.0,
    "gpus": 0,
    "compiled_kernels": True,
    "compiler": "c++ 12",
    "gloo": True,
    "nccl": False,
    "mpi": False,
}
WELL_IN_LAB: dict[str, Any] = {
    "thin_links": True,
    "thin_links_refused": None,
    "report_plots": True,
    "report_page": True,
}


def test_the_doctor_knows_this_machine() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["python"] == sys.version.split()[0]
    assert facts["gloo"] is True
    assert facts["thin_links"] is (facts["thin_links_refused"] is None)
    assert facts["verdict"].startswith("Ready for training with DDP")
    assert {*WELL, *WELL_IN_LAB} <= set(facts)


@pytest.mark.parametrize(
    ("changes", "line", "verdict", "code"),
    [
        ({}, "✓  kernels     compiled", "fast encoding, thin links, reports. Nothing is missing.", 0),
        ({"compiled_kernels": False}, "!  kernels     not compiled: torch", "Missing: kernels; their lines", 0),
        ({"compiled_kernels": False, "compiler": None}, "install a C++17 compiler (Debian: g++)", "kernels;", 0),
        ({"gloo": False}, "✗  backends    none: this build of torch", "Missing: backends;", 1),
        ({"gpus": 2}, "!  GPUs        they need nccl", "Ready for training with DDP, fast", 0),
        ({"gpus": 2, "nccl": True}, "✓  GPUs        2, with nccl", "DDP, training on GPUs, fast", 0),
        (
            {"thin_links": False, "thin_links_refused": "forbidden"},
            "!  thin links  forbidden",
            "Missing: thin links;",
            0,
        ),
        (
            {"report_page": False},
            "!  reports     plotly missing: pip install 'thinwire-lab[report]'",
            "Missing: reports",
            0,
        ),
    ],
)
def test_what_is_missing_has_a_mark_and_a_remedy(
    changes: dict[str, Any], line: str, verdict: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, facts in (("thinwire.cli.doctor", WELL), ("thinwire_lab.cli.doctor", WELL_IN_LAB)):
        known = facts | {name: value for name, value in changes.items() if name in facts}
        monkeypatch.setattr(import_module(module), "examine", partial(dict, known))
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "120"})
    assert result.exit_code == code
    assert line in result.output
    assert verdict in result.output


@pytest.mark.parametrize(("encoding", "mark"), [("ascii", "+"), ("utf-8", "✓")])
def test_marks_are_plain_where_the_terminal_has_no_unicode(encoding: str, mark: str) -> None:
    replaced = f"sys.modules['thinwire.cli.doctor'].examine = lambda: {WELL!r}"
    in_lab = f"import thinwire_lab.cli.doctor as lab; lab.examine = lambda: {WELL_IN_LAB!r}"
    code = f"import sys; from thinwire.cli import app; {replaced}; {in_lab}; app(['doctor'])"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.decode(encoding).splitlines()[:6]} == {mark}
