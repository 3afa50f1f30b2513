"""Tables on terminals of usual widths: nothing is cut, no line is too long, and nothing breaks inside a name."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from thinwire import PRESETS, STAGES
from thinwire.cli.codecs import STARTERS

WIDTHS = (80, 100, 130)
MISSING = "the kernel refuses namespaces to this user; " * 4 + "see kernel.unprivileged_userns_clone"
PROGRAM = f"""
from thinwire.cli import app
import thinwire_lab.cli.doctor as module
facts = module.examine() | {{"thin_links": False, "thin_links_refused": {MISSING!r}}}
module.examine = lambda: facts
for arguments in (["codecs"], ["codecs", "--all"], ["codecs", "scalecom"], ["doctor"]):
    app(arguments, standalone_mode=False)
    print("=====", flush=True)
"""


def on_a_terminal(code: str, width: int) -> str:
    """What a Python program shows on a terminal of so many columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, env={**env, "TERM": "xterm"}
    )
    os.close(terminal)
    limit = threading.Timer(100, process.kill)
    limit.start()
    chunks = []
    try:
        while chunk := os.read(controller, 1 << 16):
            chunks.append(chunk)
    except OSError:  # the program has ended, and nobody holds the terminal any more
        pass
    finally:
        code_of = process.wait()
        limit.cancel()
        os.close(controller)
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    assert code_of == 0, text
    return text


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_are_readable(width: int) -> None:
    shown = on_a_terminal(PROGRAM, width)
    assert "\033[32m✓" in shown  # colours, on a terminal
    short, long, one, doctor, _ = re.sub(r"\033\[[0-9;]*m", "", shown).split("=====\n")
    lines = [line for text in (short, long, one, doctor) for line in text.splitlines()]
    assert [line for line in lines if len(line) > width] == []
    assert max(map(len, lines)) > min(width, 120) - 20  # the width is used
    assert [starter.chain for starter in STARTERS] == [s.chain for s in STARTERS if f"\n{s.chain}  " in short]
    assert set(re.findall(r"^  (\w+) ", long, re.MULTILINE)) >= {*(stage.name for stage in STAGES), *PRESETS}
    chain = "feedback(keep=fp32, beta=0.1) | sharedtopk(density=0.015625, warmup=100)"
    assert f"= {chain}" in " ".join(long.split())
    assert f"\n{chain}\n" in one  # below, the chain is on a line of its own
    assert MISSING in " ".join(doctor.split())
    assert re.search(r"^!  thin links  the kernel", doctor, re.MULTILINE)
    assert "…" not in shown


def test_a_narrow_terminal_is_no_error() -> None:
    text = on_a_terminal("from thinwire.cli import app; app(['codecs'], standalone_mode=False)", 20)
    assert "topk(density=1/64)    ~52  tens of thousands" in text
