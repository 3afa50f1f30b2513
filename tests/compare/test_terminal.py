"""The tables of a comparison in a real pseudo-terminal of a given width: nothing is cut, nothing is folded."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.compare.pretended_terminal import CHAINS

ROOT = Path(__file__).resolve().parents[2]
STYLE = re.compile(r"\x1b\[[0-9;]*m")
CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")  # moves to where the next frame begins
LIMIT = 90.0  # seconds

pytestmark = pytest.mark.timeout(150)


def run_in_terminal(columns: int, *argv: str) -> tuple[str, str]:
    """What a command wrote to its terminal, with and without control sequences."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        argv, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm"}
    )
    os.close(slave)
    written, deadline = b"", time.monotonic() + LIMIT
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                chunk = os.read(master, 1 << 16)
            except OSError:  # the other side is closed: the process has ended
                break
            if not chunk:
                break
            written += chunk
        assert process.wait(timeout=max(1.0, deadline - time.monotonic())) == 0, written.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(master)
    raw = written.decode()
    return raw, CURSOR.sub("\n", STYLE.sub("", raw)).replace("\r", "")


@pytest.mark.parametrize("columns", [80, 100, 130])
def test_tables_fit_the_terminal(columns: int) -> None:
    argv = (sys.executable, "-m", "tests.compare.pretended_terminal")
    raw, text = run_in_terminal(columns, *argv)
    assert max(map(len, text.splitlines())) <= columns
    live, _, final = text.rpartition("fashion-vgg (vgg-tiny) on 4 hosts")
    # While it runs: who is where, how far, how accurate, and how long it takes yet.
    assert re.search(r"qsgd +trains +12\.5/20 s +53\.0 %", live)
    assert re.search(r"torch-powersgd +waits", live)
    assert re.search(r"2 of 7 runs done, about \d+ s left", live)
    # At the end: accuracy of everyone, in a column whose head is whole.
    head = next(line for line in final.splitlines() if line.lstrip().startswith("codec"))
    assert head.split()[:2] == ["codec", "accuracy"]
    assert "…" not in head
    rows = [line for line in final.splitlines() if re.search(r"\d\d\.\d %", line) and "…" not in line[19:]]
    for name in ("none", "qsgd", "gradiveq", "topk | rangefloat…", "torch-powersgd"):
        assert any(re.match(rf" {re.escape(name)} +\d\d\.\d %", row) for row in rows), name
    assert sum(row.startswith(" iwp(density=1/") for row in rows) == 2
    # The chains in full below, whatever the terminal folds.
    together = " ".join(final.split())
    assert all(f"= {chain}" in together for chain in CHAINS if "(" in chain)
    assert "topk | rangefloat… does not count: did not learn: 12.0 %, guessing gives 10.0 %." in together
    grey = next(line for line in raw.splitlines() if "topk | rangefloat…" in line and "12.0 %" in line)
    assert "\x1b[2m" in grey
    # The last lines tell the result.
    assert text.rstrip().splitlines()[-1].endswith(".")
    assert "After 20 s over links of 100mbit: topk | rangefloat… 12 %, none 50 %, qsgd 53 %" in together


def test_wider_terminals_show_more() -> None:
    argv = (sys.executable, "-m", "tests.compare.pretended_terminal")
    heads = []
    for columns in (80, 130):
        _, text = run_in_terminal(columns, *argv)
        heads.append(next(line for line in reversed(text.splitlines()) if line.lstrip().startswith("codec")).split())
    assert set(heads[0]) < set(heads[1])
    assert "speed-up" in heads[0]
