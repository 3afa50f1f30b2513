"""The process that keeps a lab's namespaces open, and clears up when the launcher is gone, however it went.

A lab leaves nothing on disk and nothing in the machine's network: its namespaces live exactly as long as the processes
in them, and every one of these carries a mark in its environment, `THINWIRE_LAB=thinwire-<pid>-<start>-<lab>.<n>`, that
names the launcher by its pid and start time. The keeper waits for the end of its standard input, which the kernel
brings about even when the launcher is killed, and then kills what bears the lab's mark. Should the keeper be killed as
well, the next lab finds marks of a dead launcher and does the same.

Runs as a script of its own, before any package is imported: standard library only.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "THINWIRE_LAB"
_PROC = Path("/proc")
_HOLD = "import socket, sys; socket.sethostname(sys.argv[1]); print(flush=True); sys.stdin.read()"


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of a process, or None when it is dead (or a zombie)."""
    try:
        # The name in parentheses may hold anything, also spaces and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def lab_name(number: int) -> str:
    """A name no other lab on this machine has: pid and start time name this process, the number its labs."""
    return f"thinwire-{os.getpid()}-{start_time(os.getpid())}-{number}"


def is_leftover(mark: str) -> bool:
    """Whether the launcher this mark names is dead; foreign texts are never leftovers."""
    parts = mark.partition(".")[0].split("-")
    if len(parts) != 4 or parts[0] != "thinwire" or not all(part.isdecimal() for part in parts[1:]):
        return False
    return start_time(int(parts[1])) != int(parts[2])


def marked_processes() -> Iterator[tuple[int, str]]:
    """Every process of this PID namespace that we may inspect and that belongs to a lab, with its mark."""
    prefix = f"{MARK}=".encode()
    ours = os.readlink("/proc/self/ns/pid")
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            environ = (folder / "environ").read_bytes()
            # Inside a container the pid in the mark counts differently: not ours to judge.
            if prefix not in environ or os.readlink(folder / "ns" / "pid") != ours:
                continue
        except OSError:
            continue
        for entry in environ.split(b"\0"):
            if entry.startswith(prefix):
                yield int(folder.name), entry[len(prefix) :].decode(errors="replace")


def kill_marked(chosen: Callable[[str], bool], patience: float = 5.0) -> int:
    """Kills processes whose mark is chosen until none is left (a dying one may just have forked); how many."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = [pid for pid, mark in marked_processes() if chosen(mark)]
        if not found:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.01)
    return len(killed)


def remove_leftovers() -> int:
    """Ends what labs of dead launchers left running, and their namespaces with it; how many processes."""
    return kill_marked(is_leftover)


def _replace_hosts_file(table: str) -> None:
    """Bind-mounts a name table over /etc/hosts, for this mount namespace only."""
    if not os.path.exists("/etc/hosts"):
        return
    cover = tempfile.gettempdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", cover], check=True)
    Path(cover, "hosts").write_text(table)
    subprocess.run(["mount", "--bind", f"{cover}/hosts", "/etc/hosts"], check=True)
    subprocess.run(["umount", "--lazy", cover], check=True)


def _hold(hostname: str) -> "subprocess.Popen[str]":
    """A sleeping process in a network and a host name of its own; it ends when the keeper does."""
    argv = ["unshare", "--net", "--uts", "--", sys.executable, "-ISc", _HOLD, hostname]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    if not holder.stdout.readline():
        raise SystemExit(1)  # unshare has said why
    return holder


def main(mark: str, hosts_table: str, *hostnames: str) -> None:
    """Prints the holders' pids in one line, waits for the launcher's end, clears up."""
    lab = mark.partition(".")[0] + "."
    if hostnames:
        _replace_hosts_file(hosts_table)
    holders = [_hold(hostname) for hostname in hostnames]
    print(*(holder.pid for holder in holders), flush=True)
    sys.stdin.read()
    kill_marked(lambda other: other.startswith(lab))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        raise SystemExit(1) from error
