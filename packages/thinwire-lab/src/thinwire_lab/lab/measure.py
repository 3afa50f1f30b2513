"""How much the links of a lab really carry: one TCP stream for each host and direction, against the switch.

The switch sits behind no thin link, so every figure is that of one link in one direction. The part below the functions
runs as a script on the hosts: standard library only.
"""

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire_lab.lab.cluster import Lab, Place
    from thinwire_lab.lab.rates import LabSpec

_CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class LinkSpeed:
    """Measured Mbit/s of TCP payload; a full link carries about 95 % of its rate, the rest is headers."""

    host: int
    rate: int | None  # bits per second asked for
    sent_mbit: float
    received_mbit: float


def measure_links(spec: "LabSpec", seconds: float = 1.0, max_bytes: int = 1 << 30) -> list[LinkSpeed]:
    """Makes a lab and measures every host's link, one after the other, in both directions."""
    from thinwire_lab.lab.cluster import Lab

    with Lab(spec.hosts, spec.links, spec.latency) as lab:
        return [
            LinkSpeed(
                host=host,
                rate=rate,
                sent_mbit=_measure_one(lab, host, "switch", seconds, max_bytes),
                received_mbit=_measure_one(lab, "switch", host, seconds, max_bytes),
            )
            for host, rate in enumerate(spec.rates)
        ]


def _measure_one(lab: "Lab", sender: "Place", receiver: "Place", seconds: float, max_bytes: int) -> float:
    from thinwire_lab.lab.rates import LabError

    script = [sys.executable, "-IS", __file__]
    receive = lab.popen(receiver, [*script, "receive", lab.address(receiver)], stdout=subprocess.PIPE)
    started = [receive]
    try:
        assert receive.stdout is not None
        port = receive.stdout.readline().decode().strip()
        limits = [str(seconds), str(max_bytes)]
        started.append(lab.popen(sender, [*script, "send", lab.address(receiver), port, *limits]))
        answer, _ = receive.communicate(timeout=10 * seconds + 30)
        return float(json.loads(answer)["mbit"])
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        raise LabError(f"the link between {sender} and {receiver} could not be measured: {error}; try again") from error
    finally:
        lab.end(started, grace=1.0)


def _send(address: str, port: int, seconds: float, max_bytes: int) -> None:
    data = bytes(_CHUNK)
    end = time.monotonic() + seconds
    sent = 0
    with socket.create_connection((address, port), timeout=10) as connection:
        while time.monotonic() < end and sent < max_bytes:
            sent += connection.send(data)


def _receive(address: str) -> None:
    """Counts after the first fifth of a second, when the bucket is empty and TCP has found its speed."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(20)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    connection.settimeout(20)
    buffer = bytearray(_CHUNK)
    marks = [(time.monotonic(), 0)]  # (time, bytes so far)
    total = 0
    while count := connection.recv_into(buffer):
        total += count
        marks.append((time.monotonic(), total))
    settled = [mark for mark in marks if mark[0] >= marks[0][0] + 0.2]
    (begin, before), (end, after) = (settled if len(settled) > 1 else marks)[0], marks[-1]
    print(json.dumps({"mbit": (after - before) * 8 / 1e6 / max(end - begin, 1e-9)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        _send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    else:
        _receive(sys.argv[2])
