"""Hosts behind links of a given rate: network namespaces that are joined by a bridge.

    host 0 ── eth0 ═══ port0 ┐
    host 1 ── eth0 ═══ port1 ┼ bridge, in a namespace of its own
    host 2 ── eth0 ═══ port2 ┘

A queue limits what leaves through it, so each link has two token buckets, one at each end. This module does not use
thinwire: the links are the same for all revisions. A namespace exists as long as the process that holds it, and these
processes end with this one, however it ends.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

LOOPBACK = "loopback"
INTERFACE = "eth0"
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # of `ip` and `tc`
QUEUE = "50ms"  # what a switch buffers before it drops packets
COMMAND_TIMEOUT = 30.0


class LinkError(RuntimeError):
    """This machine does not allow such links."""


@dataclass(frozen=True)
class Link:
    """Where ranks run: the words before the command of each rank, and what they need to know of their network."""

    name: str
    interface: str
    addresses: list[str]
    enter: list[list[str]] = field(repr=False)


@contextmanager
def opened_link(name: str, hosts: int) -> Iterator[Link]:
    """Hosts on the loopback of this machine, or each behind a link of a rate such as 1gbit."""
    if name == LOOPBACK:
        yield Link(name, "lo", ["127.0.0.1"] * hosts, [[] for _ in range(hosts)])
        return
    if missing := [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool, path=PATH) is None]:
        raise LinkError(f"the commands {', '.join(missing)} are needed; install iproute2 and util-linux.")
    holders: list[subprocess.Popen[str]] = []
    try:
        # An ordinary user may make networks in a user namespace, which the first holder opens for all.
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        holders.append(_hold(["unshare", *user, "--net"]))
        enter_user = ["--user", "--preserve-credentials"] if user else []

        def enter(holder: "subprocess.Popen[str]") -> list[str]:
            return ["nsenter", "--target", str(holder.pid), *enter_user, "--net", "--"]

        for _ in range(hosts):
            holders.append(_hold([*enter(holders[0]), "unshare", "--net"]))
        addresses = [f"10.77.1.{host + 1}" for host in range(hosts)]
        switch, *others = holders
        for at, command in _commands(name, addresses, [holder.pid for holder in others]):
            _run([*enter(switch if at is None else others[at]), *command])
        yield Link(name, INTERFACE, addresses, [enter(holder) for holder in others])
    finally:
        for holder in holders:
            holder.communicate()  # the end of its input ends it


def _hold(command: Sequence[str]) -> "subprocess.Popen[str]":
    """A process that does nothing in a namespace of its own until its input ends."""
    pipe = subprocess.PIPE
    script = ["sh", "-c", "echo; read line"]
    holder = subprocess.Popen([*command, *script], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert holder.stdout is not None
    if not holder.stdout.readline():
        refusal = holder.communicate()[1].strip()
        raise LinkError(f"this machine does not allow network namespaces ({refusal}); run the command as root.")
    return holder


def _commands(rate: str, addresses: Sequence[str], pids: Sequence[int]) -> Iterator[tuple[int | None, list[str]]]:
    """What makes the network, each command with the host in whose namespace it runs (None: that of the bridge)."""
    bridge = "bridge0"
    yield None, f"ip link add name {bridge} type bridge forward_delay 0 mcast_snooping 0".split()
    yield None, f"ip link set {bridge} up".split()
    for host, (address, pid) in enumerate(zip(addresses, pids, strict=True)):
        port = f"port{host}"
        yield None, f"ip link add name {port} type veth peer name {INTERFACE} netns {pid}".split()
        yield None, f"ip link set {port} master {bridge} up".split()
        yield host, ["ip", "link", "set", "lo", "up"]
        yield host, f"ip address add {address}/24 dev {INTERFACE}".split()
        yield host, f"ip link set {INTERFACE} up".split()
        for at, device in ((host, INTERFACE), (None, port)):
            yield at, f"tc qdisc add dev {device} root tbf rate {rate} burst 128kb latency {QUEUE}".split()


def _run(command: Sequence[str]) -> None:
    environment = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT)
    if done.returncode != 0:
        raise LinkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
