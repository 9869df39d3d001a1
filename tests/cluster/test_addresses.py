"""Addresses, and proxies that would catch them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster._addresses import is_loopback, join_address, port_for_job, split_address
from replicax.cluster._proxies import check_proxies, proxy_for, with_exception

HOSTS = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True) | st.ip_addresses().map(str)
PROXY = {"http_proxy": "http://user:hunter2@proxy:3128"}


@given(HOSTS, st.integers(0, 65535))
def test_an_address_comes_apart_as_it_was_put_together(host, port):
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":", ":80", "a", "a:", "a:x", "a:-1", "a:65536", "[::1]", "[::1", "::1:x", "a b:1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(errors.InvalidArgumentError, match="no address"):
        split_address(text)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.1.1", "::1", "ip6-localhost"])
def test_a_loopback_host_is_seen(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["node0", "10.0.0.1", "localhost.example", "fd00::1", "128.0.0.1"])
def test_another_host_is_no_loopback(host):
    assert not is_loopback(host)


@given(st.integers(0, 10**9))
def test_a_port_of_a_job_has_room_behind_it(number):
    assert 61440 <= port_for_job(number) <= 65535 - 500


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
@pytest.mark.parametrize("host", ["node0", "10.1.2.3", "127.0.0.1"])
def test_a_proxy_that_would_catch_a_connection_is_an_error(name, host):
    with pytest.raises(errors.FailedPreconditionError, match=f"no_proxy={host}") as caught:
        check_proxies(host, {name: PROXY["http_proxy"]})

    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "excepted"),
    [("node0", "other,node0"), ("node0.cluster", ".cluster"), ("10.1.2.3", "10.1.0.0/16")],
)
def test_an_excepted_host_is_none(host, excepted):
    check_proxies(host, {**PROXY, "no_proxy": excepted})
    check_proxies(host, {**PROXY, "no_grpc_proxy": excepted, "no_proxy": "elsewhere"})


@pytest.mark.parametrize(
    "variables", [{"no_proxy": "*"}, {"NO_PROXY": "node0"}, {"no_proxy": ""}], ids=repr
)
def test_what_grpc_does_not_read_excepts_nothing(variables):
    assert proxy_for("node0", {**PROXY, **variables}) == "http_proxy"


def test_variables_that_grpc_does_not_read_are_no_proxies():
    assert proxy_for("node0", {"HTTP_PROXY": "http://proxy:3128", "all_proxy": "x"}) is None


@given(HOSTS, st.none() | st.just("a,b"))
def test_the_advice_helps(host, before):
    environment = {**PROXY, **({} if before is None else {"no_proxy": before})}

    check_proxies(host, {**environment, "no_proxy": with_exception(host, environment)})
