"""The client for addresses that people typed in: nothing inside is reached, nothing lasts or grows beyond bounds."""

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.outbound import (
    BadAddress,
    BadAnswer,
    ForbiddenAddress,
    OutboundClient,
    OutboundError,
    OutboundLimits,
    TooSlow,
    Unreachable,
    check_url,
    may_reach,
)
from tests.doubles.authority import Authority
from tests.doubles.raw_server import answering, raw_server

INSIDE = OutboundLimits(total_seconds=30.0, allow_private=True, allow_http=True)


def resolving(*addresses: str) -> OutboundClient:
    return OutboundClient(resolve=lambda host, port: addresses)


@pytest.mark.parametrize(
    ("address", "outside", "inside"),
    [
        ("93.184.215.14", True, True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),  # carrier-grade NAT
        ("fd12:3456::1", False, True),
        ("::ffff:127.0.0.1", False, True),  # IPv4 in disguise
        ("::ffff:93.184.215.14", True, True),
        ("64:ff9b::10.0.0.1", False, True),
        ("64:ff9b::5db8:d70e", True, True),
        ("2002:0a00:0001::1", False, True),  # 6to4 of 10.0.0.1
        ("169.254.169.254", False, False),  # metadata services, and all that is link-local
        ("169.254.1.1", False, False),
        ("fe80::1", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("fd00:ec2::254", False, False),
        ("fd20:ce::254", False, False),
        ("192.0.0.192", False, False),  # a metadata service too; not every Python knows its network for special
        ("192.0.0.1", False, False),
        ("3fff::1", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
        ("240.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("fec0::1", False, False),
        ("::7f00:1", False, False),  # IPv4-compatible, long obsolete
    ],
)
def test_addresses_inside_are_for_those_who_ask_for_them(address: str, outside: bool, inside: bool) -> None:
    assert may_reach(ipaddress.ip_address(address)) is outside
    assert may_reach(ipaddress.ip_address(address), allow_private=True) is inside


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",  # not allowed here
        "ftp://issuer.example/keys",
        "file:///etc/passwd",
        "//issuer.example/keys",
        "https://",
        "https://user:word@issuer.example/",
        "https://issuer.example:0/",
        "https://issuer.example:99999/",
        "https://issuer.example/a b",
        "https://issuer.example/\r\nX: y",
        "https://issuer.example\\@inside.example/",
        "https://[::1/",
        "https://" + "a" * 64 + ".example/",
        "https://issuer.example/" + "a" * 2000,
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(BadAddress):
        check_url(url)


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "https://[::ffff:10.0.0.1]/", "https://169.254.169.254/latest"])
def test_a_url_with_an_address_inside_is_refused_as_written(url: str) -> None:
    with pytest.raises(ForbiddenAddress):
        check_url(url)


def test_names_of_other_scripts_are_asked_for_as_dns_has_them() -> None:
    assert check_url("https://bücher.example/ключи?a=b c".replace(" ", "+")).host == "xn--bcher-kva.example"


@pytest.mark.parametrize("host", ["inside.example", "0x7f.1", "2130706433", "localhost"])
def test_a_name_that_stands_for_an_address_inside_is_refused(host: str) -> None:
    with pytest.raises(ForbiddenAddress):
        resolving("127.0.0.1", "::1").fetch(f"https://{host}/")


def test_the_connection_goes_to_the_address_that_was_judged() -> None:
    """A name that answers otherwise the second time gains nothing: there is no second time."""
    asked: list[str] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

    with raw_server(answering(b"here")) as server:
        answer = OutboundClient(resolve=rebinding).fetch(f"http://name.example:{server.port}/a?b=c", limits=INSIDE)
    assert (answer.status, answer.body) == (200, b"here")
    assert asked == ["name.example"]
    assert server.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert f"host: name.example:{server.port}\r\n".encode() in server.requests[0]


def test_addresses_inside_are_passed_over_where_a_name_has_others_too() -> None:
    tried = OutboundLimits(total_seconds=0.3)
    with pytest.raises((Unreachable, TooSlow)):  # 192.88.99.2 is no host of anyone
        resolving("127.0.0.1", "192.88.99.2").fetch("https://mixed.example:9/", limits=tried)


def test_what_is_sent_and_answered() -> None:
    with raw_server(answering(b"no", status="404 Not Found", headers="X-Why: gone\r\n")) as server:
        answer = resolving("127.0.0.1").fetch(
            f"http://hook.example:{server.port}/",
            method="POST",
            headers={"Content-Type": "application/json", "Host": "other.example"},
            body=b"{}",
            limits=INSIDE,
        )
    assert (answer.status, answer.body, answer.headers["x-why"]) == (404, b"no", "gone")
    sent = server.requests[0]
    assert sent.startswith(b"POST / HTTP/1.1\r\n")
    assert sent.endswith(b"\r\n\r\n{}")
    assert b"content-length: 2\r\n" in sent
    assert b"other.example" not in sent


def test_headers_with_line_breaks_are_refused() -> None:
    with pytest.raises(BadAddress):
        resolving("127.0.0.1").fetch("http://a.example/", headers={"x": "a\r\nb: c"}, limits=INSIDE)


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    with raw_server(answering(b"", status="302 Found", headers="Location: http://169.254.169.254/\r\n")) as server:
        answer = resolving("127.0.0.1").fetch(f"http://a.example:{server.port}/", limits=INSIDE)
    assert answer.status == 302
    assert len(server.requests) == 1


def test_a_server_that_drips_is_left_when_the_whole_time_is_over() -> None:
    def drip(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not server.ended.wait(0.02):
            connection.sendall(b".")

    with raw_server(drip) as server:
        began = time.monotonic()
        with pytest.raises(TooSlow):
            resolving("127.0.0.1").fetch(
                f"http://a.example:{server.port}/",
                limits=OutboundLimits(total_seconds=0.3, allow_private=True, allow_http=True),
            )
        assert time.monotonic() - began < 10  # all of it would take twenty


def test_a_resolver_that_hangs_is_left() -> None:
    end = threading.Event()

    def hang(host: str, port: int) -> Sequence[str]:
        end.wait(10)
        return []

    try:
        with pytest.raises(TooSlow):
            OutboundClient(resolve=hang).fetch("https://a.example/", limits=OutboundLimits(total_seconds=0.1))
    finally:
        end.set()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", BadAnswer),  # larger than asked for, by its own word
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200, BadAnswer),  # and without a word
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\n" + b"x" * 100 + b"\r\n64\r\n" + b"x" * 100,
            BadAnswer,
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nxx", BadAnswer),  # cut off
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nxx", BadAnswer),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx", BadAnswer),
        (b"SSH-2.0-OpenSSH\r\n", BadAnswer),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", BadAnswer),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000 + b"\r\n\r\n", BadAnswer),
        (b"", BadAnswer),
    ],
)
def test_answers_that_are_too_large_cut_off_or_no_http(answer: bytes, error: type[OutboundError]) -> None:
    limits = OutboundLimits(total_seconds=30.0, answer_bytes=150, allow_private=True, allow_http=True)
    with raw_server(lambda connection, _: connection.sendall(answer)) as server, pytest.raises(error):
        resolving("127.0.0.1").fetch(f"http://a.example:{server.port}/", limits=limits)


def test_nobody_listening_and_no_such_name() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen, and nobody else is given its port
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable):
            resolving("127.0.0.1").fetch(f"http://a.example:{port}/", limits=INSIDE)
    with pytest.raises(Unreachable):
        OutboundClient(resolve=unknown).fetch("https://a.example/")
    with pytest.raises(Unreachable):
        resolving().fetch("https://a.example/")


def test_tls_is_verified_against_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    with raw_server(answering(b"keys"), tls=authority.server("DNS:issuer.example")) as server:

        def fetch(host: str, tls: ssl.SSLContext | None) -> bytes:
            client = OutboundClient(tls=tls, resolve=lambda host, port: ["127.0.0.1"])
            return client.fetch(f"https://{host}:{server.port}/", limits=INSIDE).body

        assert fetch("issuer.example", trusting) == b"keys"
        with pytest.raises(Unreachable, match="certificate"):
            fetch("another.example", trusting)
        with pytest.raises(Unreachable, match="certificate"):
            fetch("issuer.example", None)
