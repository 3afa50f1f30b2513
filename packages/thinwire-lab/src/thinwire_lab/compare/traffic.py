"""Bytes that this process really sent, asked of the kernel: whatever hook or backend wrote them, on any network."""

import fcntl
import os
import socket
import struct
import termios

# struct tcp_info of Linux: tcpi_bytes_acked, which counts every byte once, sent twice or not
_ACKED = 120
_LENGTH = 256


class Traffic:
    """Counts the payload of all TCP connections of this process; those that are closed meanwhile are left out."""

    def __init__(self) -> None:
        self._before = written_bytes()
        self._total = 0

    def total(self) -> int | None:
        """Bytes since the beginning; None where the kernel does not tell."""
        now = written_bytes()
        if now is None or self._before is None:
            return None
        # a connection that is not known yet began at 0
        self._total += sum(count - self._before.get(inode, 0) for inode, count in now.items())
        self._before = now
        return self._total


def written_bytes() -> dict[int, int] | None:
    """Bytes that were acknowledged or are on their way, by the socket's inode; None without Linux's accounts."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir("/proc/self/fd"):
        return None
    counts: dict[int, int] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
                queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
                inode = os.fstat(connection.fileno()).st_ino
        except OSError:  # closed meanwhile, or no connection yet
            continue
        if len(info) < _ACKED + 8:
            return None
        counts[inode] = struct.unpack_from("Q", info, _ACKED)[0] + struct.unpack("i", queued)[0]
    return counts
