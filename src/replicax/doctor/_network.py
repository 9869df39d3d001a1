"""Names, addresses and ports: facts, without a judgement."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.cluster._addresses import is_loopback, split_address
from replicax.cluster._proxies import proxy_for

from ._process import run

_RESOLVE_S = 6.0
_CONNECT_S = 2.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")

# A question to a name server may take half a minute, and no time-out of Python ends it.
_RESOLVE = """
import json, socket, sys
try:
    found = socket.getaddrinfo(sys.argv[1], None, type=socket.SOCK_STREAM)
    print(json.dumps(sorted({each[4][0] for each in found})))
except OSError as error:
    print(json.dumps(str(error)))
"""


def resolved(name: str) -> dict[str, Any]:
    """The addresses of a name, or why there are none."""
    command = [sys.executable, "-I", "-S", "-c", _RESOLVE, name]
    ended = run(command, _RESOLVE_S, os.environ)
    if ended.code != 0:
        return {"name": name, "addresses": [], "error": f"the name service {ended.how}"}
    found = json.loads(ended.stdout)
    if isinstance(found, str):
        return {"name": name, "addresses": [], "error": found}
    return {"name": name, "addresses": found, "error": None}


def own_name() -> dict[str, Any]:
    """This host's name, and where it leads."""
    return resolved(socket.gethostname())


def ports(wanted: Sequence[int]) -> dict[str, Any]:
    """Which of the ports cannot be listened on, and why."""
    taken = {}
    for port in wanted:
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            taken[str(port)] = error.strerror or str(error)
    return {"looked_at": list(wanted), "taken": taken}


def proxies(environment: Mapping[str, str], hosts: Sequence[str]) -> dict[str, Any]:
    """The variable that would catch the connection to each host, where one would."""
    names = [name for name in _PROXIES if environment.get(name)]
    caught = {host: proxy_for(host, environment) for host in hosts}
    return {"set": names, "caught": {host: name for host, name in caught.items() if name}}


def hosts(addresses: Sequence[str], default_port: int) -> list[dict[str, Any]]:
    """Whether each host has an address, and answers at its port."""
    return [_host(address, default_port) for address in addresses]


def _host(address: str, default_port: int) -> dict[str, Any]:
    host, port = split_address(address, default_port=default_port)
    found = resolved(host) | {"port": port, "answer": None, "is_loopback": is_loopback(host)}
    for each in found["addresses"][:1]:
        found["answer"] = _answer(each, port)
    return found


def _answer(address: str, port: int) -> str:
    """`open`, `closed` (the host is there, and nobody listens), or what is in the way."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except ConnectionRefusedError:
        return "closed"
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "open"
