"""What one client may have open: who a client is, and how it is counted."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.clients import ClientGuard, client_name

TRUSTED = ("10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_its_address_or_its_ipv6_network(host: str, name: str) -> None:
    assert client_name(host) == name


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ([b"203.0.113.5"], "203.0.113.5"),
        ([b"198.51.100.1, 203.0.113.5"], "203.0.113.5"),
        ([b"198.51.100.1, 203.0.113.5, 10.1.1.1, 192.0.2.7"], "203.0.113.5"),
        ([b"198.51.100.1", b"203.0.113.5,10.1.1.1"], "203.0.113.5"),
        ([b"203.0.113.5:4711"], "203.0.113.5"),
        ([b"[2001:db8:2::9]:4711"], "2001:db8:2::9"),
        ([b"2001:db8:2::9, 2001:db8:1::2"], "2001:db8:2::9"),
        ([], "10.0.0.1"),
        ([b""], "10.0.0.1"),
        ([b"unknown"], "10.0.0.1"),
        ([b"203.0.113.5, nonsense"], "10.0.0.1"),
        ([b"nonsense, 203.0.113.5"], "203.0.113.5"),
        ([b"10.0.0.9, 10.0.0.8"], "10.0.0.1"),
        ([b"203.0.113.5" + b", 10.0.0.2" * 40], "10.0.0.1"),
        ([b"\xff\xfe"], "10.0.0.1"),
    ],
)
def test_the_right_most_address_that_is_no_trusted_proxy_counts(forwarded: list[bytes], client: str) -> None:
    headers = [(b"host", b"a"), *((b"x-forwarded-for", value) for value in forwarded)]
    assert ClientGuard(1, TRUSTED).client_behind("10.0.0.1", headers) == client


@given(st.binary(max_size=200))
def test_no_header_breaks_it_or_makes_a_client_a_proxy(value: bytes) -> None:
    guard = ClientGuard(1, TRUSTED)
    client = guard.client_behind("10.0.0.1", [(b"x-forwarded-for", value)])
    assert client == "10.0.0.1" or not guard.is_proxy(client)


def test_only_listed_peers_are_proxies() -> None:
    assert not ClientGuard(1).is_proxy("10.0.0.1")
    guard = ClientGuard(1, TRUSTED)
    found = [guard.is_proxy(host) for host in ("10.9.9.9", "::ffff:10.9.9.9", "192.0.2.8", "2001:db8:1::5", "nonsense")]
    assert found == [True, True, False, True, False]


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="proxies"):
        ClientGuard(1, ["proxies"])


def test_over_the_cap_is_told_and_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refused = Counter[str]()
    guard = ClientGuard(2, on_refusal=lambda: refused.update(["x"]), now=lambda: now[0])
    assert [guard.enter("a") for _ in range(5)] == [0, 0, 1, 2, 3]
    assert guard.enter("b") == 0
    now[0] = 1.5
    guard.enter("a")
    assert refused["x"] == 4
    assert len([record for record in caplog.records if "client_over_its_cap" in record.getMessage()]) == 2
    for _ in range(6):
        guard.leave("a")
    assert (guard.open("a"), guard.enter("a")) == (0, 0)


@given(st.lists(st.sampled_from(["a", "b", "c", "-a", "-b", "-c"])))
def test_counts_are_what_came_less_what_left(steps: list[str]) -> None:
    guard, expected = ClientGuard(3), Counter[str]()
    for step in steps:
        name = step.removeprefix("-")
        if name == step:
            expected[name] += 1
            assert guard.enter(name) == max(0, expected[name] - 3)
        elif expected[name]:
            expected[name] -= 1
            guard.leave(name)
        assert guard.open(name) == expected[name]
