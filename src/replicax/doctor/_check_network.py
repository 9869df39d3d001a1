"""Judgements of names, addresses, ports and proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replicax.cluster._addresses import is_loopback, join_address

from ._findings import Finding

Facts = Mapping[str, Any]


def check_name(facts: Facts) -> Iterator[Finding]:
    """Whether this host's own name leads to an address that others reach."""
    found = facts["own_name"]
    name, addresses = found["name"], found["addresses"]
    is_far = any(not is_loopback(each) for each in addresses)
    is_enough = is_far or (addresses and not facts["asked"]["several_hosts"])
    leads = ", ".join(addresses) if addresses else f"nowhere: {found['error']}"
    yield Finding(
        id="host-name",
        status="ok" if is_enough else "warning",
        what=f"The name of this host, {name}, leads to {leads}."
        + (" Jobs of one host need no more." if is_enough and not is_far else ""),
        why="Gloo tells the others the address behind the name; a loopback address, or none, is "
        "of use on one host alone.",
        fix=f"have DNS or /etc/hosts lead {name} to the address that the other hosts reach.",
    )


def check_hosts(facts: Facts) -> Iterator[Finding]:
    """The hosts that were given: names, and whether they answer."""
    for found in facts["hosts"]:
        address = join_address(found["name"], found["port"])
        if not found["addresses"]:
            yield Finding(
                id="hosts",
                status="failure",
                what=f"{found['name']} has no address: {found['error']}.",
                why="the workers find each other by name.",
                fix="check the name; have DNS or /etc/hosts know it on every host.",
            )
            continue
        fine = {"open": "it answers", "closed": "it is there, and nobody listens yet"}
        answer = found["answer"]
        told = fine.get(answer, answer)
        yield Finding(
            id="hosts",
            status="ok" if answer in fine else "failure",
            what=f"{address} ({', '.join(found['addresses'])}): {told}.",
            why="what comes to that port is dropped on the way, or the host is down.",
            fix="open the port, and those that the system gives out, between the hosts of the job.",
        )


def check_ports(facts: Facts) -> Iterator[Finding]:
    """The ports that a job of several hosts listens on."""
    found, is_asked = facts["ports"], facts["asked"]["ports"]
    first = found["looked_at"][0]
    taken = [f"{port} ({why})" for port, why in found["taken"].items()]
    told = f"{', '.join(taken)} cannot be used" if taken else "are free"
    yield Finding(
        id="ports",
        status="ok" if not taken else "failure" if is_asked else "warning",
        what=f"Of the ports {first} to {found['looked_at'][-1]}: {told}."
        if taken
        else f"The ports {first} to {found['looked_at'][-1]} are free.",
        why="host 0 of a job of several hosts listens on three ports, from --master-port on. "
        "Another job, or one that did not end, may hold them.",
        fix=f"see who: ss -ltnp 'sport = :{next(iter(found['taken']), first)}'; or choose others: "
        "--master-port.",
    )


def check_proxies(facts: Facts) -> Iterator[Finding]:
    """Proxies that would catch the connections of workers."""
    found = facts["proxies"]
    caught = found["caught"]
    asked = [host for host in caught if host in facts["asked"]["hosts"]]
    names = ", ".join(caught)
    variables = " and ".join(dict.fromkeys(caught.values()))
    if not caught:
        what = "No proxy would catch the connections of workers."
    else:
        what = f"{variables} would send connections to {names} to a proxy."
    yield Finding(
        id="proxies",
        status="failure" if asked else "warning" if caught else "ok",
        what=what,
        why="the workers' coordination speaks gRPC, which obeys these variables even for the own "
        "host. `replicax run` excepts the hosts where its workers meet; other launchers do not.",
        fix=f"export no_proxy={','.join(caught)} (in lower case), before Python starts.",
    )
