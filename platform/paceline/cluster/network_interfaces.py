"""The network interface by which a node is known to the others."""

import os
import socket
from pathlib import Path

import psutil

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""What gloo and NCCL take the name of an interface from. Both would otherwise guess: gloo by the machine's own name,
which in many images stands for 127.0.0.1, NCCL by the first one that is up."""


def interface_of(address: str) -> str | None:
    """The name of this machine's network interface that has an IP address; None where none has."""
    families = (socket.AF_INET, socket.AF_INET6)
    for name, own in psutil.net_if_addrs().items():
        if any(each.family in families and each.address.partition("%")[0] == address for each in own):
            return name
    return None


def use_interface(address: str) -> None:
    """Have gloo and NCCL of this process talk over the interface that has an IP address; what the user's environment
    names stays."""
    name = interface_of(address)
    if name is not None:
        for variable in INTERFACES:
            os.environ.setdefault(variable, name)


def megabits(interface: str) -> int | None:
    """Speed of an interface in Mbit/s, where the system tells it: virtual ones often do not."""
    try:
        speed = int(Path("/sys/class/net", interface, "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None
