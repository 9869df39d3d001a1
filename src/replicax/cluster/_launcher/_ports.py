"""Ports and addresses for programs that open their own."""

from __future__ import annotations

import contextlib
import socket

from replicax.cluster._addresses import join_address


def free_ports(count: int) -> list[int]:
    """Ports of this host that nobody listens on just now, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_addresses(count: int, host: str) -> list[str]:
    """`host` with ports of this host that nobody listens on just now."""
    return [join_address(host, port) for port in free_ports(count)]
