"""Of a listener that closes, nobody who has connected is lost, and nobody connects to it any more."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from gateway.relay.newcomers import hold_back_newcomers, take_all

LOOPBACK = "127.0.0.1"


def listener(port: int = 0) -> socket.socket:
    """One that shares its port, as relays do, and does not block."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((LOOPBACK, port))
    made.listen(16)
    made.setblocking(False)
    return made


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def held_back(opened: ExitStack) -> socket.socket:
    """A listener that newcomers are kept from, one connection in its queue."""
    ours = opened.enter_context(closing(listener()))
    opened.enter_context(closing(socket.create_connection(ours.getsockname())))
    if not hold_back_newcomers(ours):
        pytest.skip("this system lets its users put no filter on a listener")
    return ours


def test_who_was_there_before_is_taken_and_hears_and_is_heard(opened: ExitStack) -> None:
    ours = opened.enter_context(closing(listener()))
    before = opened.enter_context(closing(socket.create_connection(ours.getsockname(), timeout=10)))
    hold_back_newcomers(ours)
    before.sendall(b"asked")
    (taken,) = take_all(ours)
    ours.close()
    assert taken.gettimeout() == 0.0
    taken.settimeout(10)
    opened.enter_context(closing(taken))
    assert taken.recv(16) == b"asked"
    taken.sendall(b"told")
    assert before.recv(16) == b"told"
    before.close()
    assert taken.recv(16) == b""


def test_who_comes_later_does_not_connect_here(opened: ExitStack) -> None:
    ours = held_back(opened)
    late = opened.enter_context(closing(socket.socket()))
    late.setblocking(False)
    assert late.connect_ex(ours.getsockname()) == errno.EINPROGRESS
    (before,) = take_all(ours)
    opened.enter_context(closing(before))
    assert take_all(ours) == []
    assert late.connect_ex(ours.getsockname()) == errno.EALREADY  # it is on its way still, and not refused


def test_who_comes_later_reaches_whoever_shares_the_port(opened: ExitStack) -> None:
    ours = held_back(opened)
    port = ours.getsockname()[1]
    other = opened.enter_context(closing(listener(port)))
    other.settimeout(10)
    (before,) = take_all(ours)
    opened.enter_context(closing(before))
    for _ in range(8):  # some of them would have come to ours
        late = opened.enter_context(closing(socket.socket()))
        late.setblocking(False)
        late.connect_ex((LOOPBACK, port))
    ours.close()
    for _ in range(8):
        opened.enter_context(closing(other.accept()[0]))
