"""The wires of a lab: the `ip` and `tc` commands that join namespaces by a bridge and shape every link.

    host0 ── thin0 ═══ p0 ┐
    host1 ── thin0 ═══ p1 ┼ bridge, in a namespace of its own
    host2 ── thin0 ═══ p2 ┘

A queue shapes what leaves through it, so each link has two token buckets: at `thin0` for what the host sends, at `p<i>`
for what it receives.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from thinwire_lab.lab.rates import LabError, LabSpec

INTERFACE = "thin0"
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
QUEUE_SECONDS = 0.05  # what a switch port buffers before it drops
CONGESTION_CONTROLS = ("cubic", "reno")  # by preference: what hosts use unless their owner chose another
_SWITCH = 254


def host_address(host: int) -> str:
    """IPv4 address of a host; labs are cut off from each other and from the machine, so all use the same ones."""
    return f"10.77.0.{host + 1}"


def switch_address() -> str:
    """The bridge's own address: a peer behind no shaped link, to measure one link at a time."""
    return f"10.77.0.{_SWITCH}"


def hosts_table(num_hosts: int) -> str:
    """An /etc/hosts in which every host's name leads to its address on the shaped link.

    The mapped addresses are what torch's dual-stack sockets look up; without them it warns about each connection.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for host in range(num_hosts):
        lines += [f"{host_address(host)} host{host}", f"::ffff:{host_address(host)} host{host}.lab"]
    return "\n".join(lines) + "\n"


def burst_bytes(rate: int) -> int:
    """Size of the token bucket: one millisecond of the rate, and at least a few packets.

    A deep bucket would let whole small messages through for free; one shallower than a timer tick loses throughput.
    """
    return max(rate // 8 // 1000, 8 * 1024)


def segment_bytes(rate: int) -> int:
    """The longest run of packets that a host hands to its link in one piece, as to a card that cuts it up by itself.

    A bucket cuts what does not fit it into single packets, in software, which costs ten times the processor time. A
    tenth is left for the headers, which the bucket counts for every packet.
    """
    return min(burst_bytes(rate) * 9 // 10, 65536)


def choose_congestion_control() -> list[str]:
    """The command that gives a host the first congestion control of the list that it may use.

    A host would inherit the machine's own, so that results would depend on it: with BBR, for one, exchanges that follow
    each other took a tenth longer.
    """
    setting = "/proc/sys/net/ipv4/tcp_congestion_control"
    # a name that is not allowed can be written without an error, and without effect
    attempt = f'echo $name > {setting}; [ "$(cat {setting})" = $name ] && break'
    return ["sh", "-c", f"for name in {' '.join(CONGESTION_CONTROLS)}; do {attempt}; done 2>/dev/null; true"]


def shape_commands(device: str, rate: int | None, delay: float) -> list[list[str]]:
    """`tc` commands that limit what leaves through a device to a rate and hold it for a delay first."""
    commands = []
    parent = ["root"]
    if rate is not None:
        queue = f"{QUEUE_SECONDS * 1000:g}ms"
        limit = ["tbf", "rate", f"{rate}bit", "burst", str(burst_bytes(rate)), "latency", queue]
        commands.append(["tc", "qdisc", "add", "dev", device, "root", "handle", "1:", *limit])
        parent = ["parent", "1:1"]
    if delay > 0:
        # Packets on the way: what the rate brings in during the delay and the queue.
        packets = round((rate or 10**10) / 8 / 1500 * (delay + QUEUE_SECONDS)) + 1000
        hold = ["netem", "delay", f"{round(delay * 1e6)}us", "limit", str(packets)]
        commands.append(["tc", "qdisc", "add", "dev", device, *parent, "handle", "10:", *hold])
    return commands


def wiring(spec: LabSpec, switch: int, holders: Sequence[int]) -> list[tuple[int, list[str]]]:
    """All commands that make the network, each with the pid of the process in whose network namespace it runs.

    The delay is put on the sending side only: a packet passes one such queue on its way, so one way takes the given
    time and a round trip twice that.
    """
    bridge = ["name", "bridge0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0"]
    commands = [
        (switch, ["ip", "link", "set", "lo", "up"]),
        (switch, ["ip", "link", "add", *bridge]),
        (switch, ["ip", "link", "set", "bridge0", "addrgenmode", "none", "up"]),
        (switch, ["ip", "address", "add", f"{switch_address()}/24", "dev", "bridge0"]),
    ]
    for host, (holder, rate) in enumerate(zip(holders, spec.rates, strict=True)):
        port = f"p{host}"
        peer = ["peer", "name", INTERFACE, "netns", str(holder)]
        commands += [
            (switch, ["ip", "link", "add", "name", port, "type", "veth", *peer]),
            (switch, ["ip", "link", "set", port, "master", "bridge0", "addrgenmode", "none", "up"]),
            (holder, ["ip", "link", "set", "lo", "up"]),
            (holder, ["ip", "link", "set", INTERFACE, "addrgenmode", "none", "up"]),
            (holder, ["ip", "address", "add", f"{host_address(host)}/24", "dev", INTERFACE]),
        ]
        commands.append((holder, choose_congestion_control()))
        if rate is not None:
            size = ["gso_max_size", str(segment_bytes(rate))]
            commands += [
                (switch, ["ip", "link", "set", port, *size]),
                (holder, ["ip", "link", "set", INTERFACE, *size]),
            ]
        commands += [(holder, command) for command in shape_commands(INTERFACE, rate, spec.delay)]
        commands += [(switch, command) for command in shape_commands(port, rate, 0.0)]
    return commands


def require_tools() -> None:
    """Raises with the Debian package to install when a tool is missing."""
    for tool, package in PACKAGES.items():
        if find_tool(tool) is None:
            raise LabError(
                f"the command `{tool}` is needed to make thin links and was not found; "
                f"install it (Debian, Ubuntu: apt install {package}), or use --link none"
            )


def find_tool(tool: str) -> str | None:
    """Path of a command; a plain user's PATH often lacks the sbin folders where `ip` and `tc` lie."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def explain_failed_command(command: Sequence[str], stderr: str) -> LabError:
    """The error for an `ip` or `tc` command the kernel refused."""
    if "kind is unknown" in stderr:
        module = "sch_netem" if "netem" in command else "sch_tbf"
        option = "--latency" if "netem" in command else "--link"
        return LabError(
            f"this kernel has no {module}, which {option} needs; load it (modprobe {module}; Ubuntu: apt install "
            f"linux-modules-extra-$(uname -r)), or leave {option} out"
        )
    return LabError(f"`{' '.join(command)}` failed: {stderr.strip()}; `thinwire doctor` shows what this machine lacks")


def explain_refused_namespaces(stderr: str) -> LabError:
    """The error when neither root nor an unprivileged user may make namespaces, with the setting to change."""
    switches = {
        "kernel/unprivileged_userns_clone": ("0", "1"),
        "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
        "user/max_user_namespaces": ("0", "10000"),
    }
    remedy = "run it as root (sudo), in a container with --privileged"
    for name, (forbidding, allowing) in switches.items():
        path = Path("/proc/sys", name)
        if path.exists() and path.read_text().strip() == forbidding:
            remedy = f"run `sudo sysctl -w {name.replace('/', '.')}={allowing}`, or run it as root"
            break
    return LabError(f"this machine does not allow network namespaces ({stderr.strip()}); {remedy}, or use --link none")
