"""Proxies of the environment that would catch the connection to a worker.

The coordination service speaks gRPC, and gRPC sends even a connection to 127.0.0.1 to the proxy
that the environment names. Nobody answers there, and the runtime ends the process. It reads the
names in lower case only, and takes no `*`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from replicax.errors import FailedPreconditionError, Table, describe

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def check_proxies(host: str, environment: Mapping[str, str]) -> None:
    """Refuses an environment whose proxy would catch connections to `host`.

    Raises:
        FailedPreconditionError: A proxy is set, and `host` is not excepted.

    Examples:
        >>> check_proxies("node0", {"http_proxy": "http://proxy:3128", "no_proxy": "node0"})
    """
    catching = proxy_for(host, environment)
    if catching is None:
        return
    rows = [[name, environment[name]] for name in (*_PROXIES, *_EXCEPTIONS) if name in environment]
    hidden = [[name, _without_password(value)] for name, value in rows]
    message = describe(
        f"The variable {catching} would send the connection to {host} to a proxy.",
        table=Table(["variable", "value"], hidden),
        why="workers talk to each other directly; JAX's coordination service obeys these "
        "variables, and the process would be aborted without a Python exception.",
        fix=f"set no_proxy={with_exception(host, environment)} (in lower case), or unset "
        f"{catching}, before Python starts.",
    )
    raise FailedPreconditionError(message)


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """The variable whose proxy gRPC would use for `host`, or None."""
    set_ones = [name for name in _PROXIES if environment.get(name)]
    if not set_ones or _is_excepted(host, environment):
        return None
    return set_ones[0]


def with_exception(host: str, environment: Mapping[str, str]) -> str:
    """The value of `no_proxy` that also excepts `host`."""
    return ",".join(filter(None, [environment.get("no_proxy", ""), host]))


def _is_excepted(host: str, environment: Mapping[str, str]) -> bool:
    text = next((environment[name] for name in _EXCEPTIONS if environment.get(name)), "")
    return any(_covers(entry.strip(), host) for entry in text.split(",") if entry.strip())


def _covers(entry: str, host: str) -> bool:
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _without_password(value: str) -> str:
    """A proxy's address may carry a user's password."""
    scheme, separator, rest = value.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]
