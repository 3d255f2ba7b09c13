"""Where processes listen, and which of these places other machines can reach."""

import socket
from typing import Any

import psutil

OWN = ("127.", "::ffff:127.", "::1 ")
"""Starts of the addresses that no other machine reaches."""


def addresses(processes: list[psutil.Process]) -> dict[str, str]:
    """Return address and port of each place where one of the processes listens, with the process's name."""
    found: dict[str, str] = {}
    for process in processes:
        try:
            sockets: list[Any] = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found |= {
            f"{each.laddr.ip} {each.laddr.port}": process.name()
            for each in sockets
            if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and not each.raddr)
        }
    return found


def require_private(processes: list[psutil.Process]) -> None:
    """Check that Ray's parts and the workers listen, and only where no other machine reaches them."""
    listening = addresses(processes)
    names = set(listening.values())
    assert {"gcs_server", "raylet"} < names
    assert any(name.startswith("ray::RayTrainWorker") for name in names)
    assert {place: name for place, name in listening.items() if not place.startswith(OWN)} == {}
