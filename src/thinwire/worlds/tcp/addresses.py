"""The addresses of this host at which the other ranks reach it."""

import array
import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915  # the request for the address of an interface


def own_addresses() -> list[str]:
    """The addresses of the interface that Gloo is configured to use, or else those that Gloo would choose."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return [address for address in [_interface_address(interface)] if address]
    master = os.environ.get("MASTER_ADDR")
    found = [_address_towards(master) if master else None, _address_towards(socket.gethostname())]
    return list(dict.fromkeys(address for address in found if address)) or ["127.0.0.1"]


def _interface_address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = array.array("b", struct.pack("256s", name.encode()[:15]))
        try:
            fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
        return socket.inet_ntoa(request[20:24].tobytes())


def _address_towards(host: str) -> str | None:
    """This host's address on the route to another host; nothing is sent."""
    try:
        family, kind, _, _, destination = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(destination)
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return None
