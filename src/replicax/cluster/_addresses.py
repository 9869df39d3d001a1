"""Addresses: `host:port`, also of IPv6, and whether a host is this machine alone."""

from __future__ import annotations

import ipaddress

from replicax.errors import InvalidArgumentError, describe

LAST_PORT = 65535
_EPHEMERAL_FIRST = 61440
_EPHEMERAL_COUNT = 3584  # room for the ports after it


def split_address(address: str, *, default_port: int | None = None) -> tuple[str, int]:
    """Takes `host:port` apart; an IPv6 host stands in brackets.

    Raises:
        InvalidArgumentError: There is no host, or no port from 0 to 65535.

    Examples:
        >>> split_address("node1:8476"), split_address("[::1]:80")
        (('node1', 8476), ('::1', 80))
    """
    text = address.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest.startswith(":") or not rest else "?"
    elif text.count(":") > 1:  # a bare IPv6 address has no port
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not port and default_port is not None:
        port = str(default_port)
    if not host or any(sign.isspace() for sign in host) or not _is_port(port):
        message = describe(
            f"{address!r} is no address.",
            why=f"an address is host:port, with a port from 0 to {LAST_PORT}.",
            fix="write node1:8476, or [fd00::1]:8476 for IPv6.",
        )
        raise InvalidArgumentError(message)
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Puts a host and a port together.

    Examples:
        >>> join_address("::1", 80)
        '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """The host of an address, whether it has a port or not.

    Examples:
        >>> host_of("node1:8476"), host_of("node1"), host_of("[::1]:80")
        ('node1', 'node1', '::1')
    """
    return split_address(address, default_port=0)[0]


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean the machine that asks.

    Examples:
        >>> is_loopback("localhost"), is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
        (True, True, False)
    """
    name = host.lower().rstrip(".")
    if name in ("localhost", "ip6-localhost", "ip6-loopback") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def port_for_job(number: int) -> int:
    """A port that all workers of a job find without talking: from 61440 on.

    Examples:
        >>> port_for_job(0), port_for_job(3584)
        (61440, 61440)
    """
    return _EPHEMERAL_FIRST + number % _EPHEMERAL_COUNT


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= LAST_PORT
