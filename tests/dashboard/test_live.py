"""The live channel: who may watch, what a frame holds, and that many viewers cost one reader."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from channels.sessions import SessionMiddlewareStack
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import OperationalError
from django.utils import timezone

from dashboard.consumers import CLOSE_DENIED, ConsoleConsumer, is_same_origin
from dashboard.frames import VERSION, build_console_frame, encode
from dashboard.publisher import Publisher
from dashboard.routing import websocket_urlpatterns
from tenants.models import User
from tests.dashboard.people import person, pool, tenant, usage

DEADLINE = 10.0


def session_of(user: User | None) -> str:
    """The key of a session in which `user` is logged in."""
    store = SessionStore()
    if user is not None:
        store[SESSION_KEY] = str(user.pk)
        store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    assert store.session_key is not None
    return store.session_key


@asynccontextmanager
async def socket(session_key: str, *, origin: str = "http://testserver") -> AsyncIterator[Any]:
    """A websocket to the console's channel, asked for and not yet answered."""
    scope = {
        "type": "websocket",
        "path": "/ws/console",
        "query_string": b"",
        "headers": [
            (b"host", b"testserver"),
            (b"origin", origin.encode()),
            (b"cookie", f"{settings.SESSION_COOKIE_NAME}={session_key}".encode()),
        ],
    }
    application: Any = SessionMiddlewareStack(URLRouter(cast("list[Any]", websocket_urlpatterns)))
    communicator: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]  # asgiref's
    await communicator.send_input({"type": "websocket.connect"})
    try:
        yield communicator
    finally:
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait(DEADLINE)


async def answer_of(communicator: Any) -> dict[str, Any]:
    message: dict[str, Any] = await communicator.receive_output(timeout=DEADLINE)
    return message


async def frame_of(communicator: Any) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads((await answer_of(communicator))["text"])
    return frame


@pytest.fixture
def quick_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsoleConsumer, "recheck_seconds", 0.05)


@pytest.mark.django_db(transaction=True)
async def test_operator_gets_frames_in_sequence() -> None:
    await database_sync_to_async(pool)()
    key = await database_sync_to_async(lambda: session_of(person("olga", platform_role="operator")))()
    async with socket(key) as communicator:
        assert (await answer_of(communicator))["type"] == "websocket.accept"
        first, second = await frame_of(communicator), await frame_of(communicator)
    assert first["v"] == VERSION
    assert second["seq"] > first["seq"]
    assert first["figures"]["ready"] == 1
    assert first["devices"][0]["name"] == "NVIDIA H100"
    assert first["instances"][0]["endpoint"] == "10.0.0.1:21000"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("who", ["member", "nobody", "made-up"])
async def test_others_are_closed_with_a_reason_and_get_nothing(who: str) -> None:
    keys: dict[str, Callable[[], str]] = {
        "member": lambda: session_of(person("ada")),
        "nobody": lambda: session_of(None),
        "made-up": lambda: "0123456789abcdefghijklmnopqrstuv",
    }
    key = await database_sync_to_async(keys[who])()
    async with socket(key) as communicator:
        assert (await answer_of(communicator))["type"] == "websocket.accept"
        closed = await answer_of(communicator)
    assert (closed["type"], closed["code"]) == ("websocket.close", CLOSE_DENIED)


@pytest.mark.django_db(transaction=True)
async def test_pages_of_another_origin_are_not_let_in() -> None:
    key = await database_sync_to_async(lambda: session_of(person("olga", platform_role="operator")))()
    async with socket(key, origin="http://testserver:9999") as communicator:
        assert (await answer_of(communicator))["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        (b"http://gate.example:8000", True),
        (b"https://gate.example:8000", True),
        (b"http://gate.example:8001", False),
        (b"http://gate.example", False),
        (b"http://evil.example", False),
        (b"null", False),
        (b"", False),
    ],
)
def test_origin_is_compared_with_its_port(origin: bytes, same: bool) -> None:
    headers = [(b"host", b"gate.example:8000"), *([(b"origin", origin)] if origin else [])]
    assert is_same_origin({"headers": headers}) is same


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick_recheck")
@pytest.mark.parametrize("loss", ["role", "account", "session"])
async def test_socket_closes_when_the_right_to_watch_ends(loss: str) -> None:
    user = await database_sync_to_async(person)("olga", platform_role="operator")
    key = await database_sync_to_async(session_of)(user)

    def lose() -> None:
        match loss:
            case "role":
                User.objects.update(platform_role="")
            case "account":
                User.objects.update(is_active=False)
            case _:
                SessionStore(key).flush()

    async with socket(key) as communicator:
        assert (await answer_of(communicator))["type"] == "websocket.accept"
        await frame_of(communicator)
        await database_sync_to_async(lose)()
        async with asyncio.timeout(DEADLINE):
            while (message := await answer_of(communicator))["type"] != "websocket.close":
                pass
    assert message["code"] == CLOSE_DENIED


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick_recheck")
async def test_lost_right_is_noticed_after_the_database_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    key = await database_sync_to_async(lambda: session_of(person("olga", platform_role="operator")))()
    asked = asyncio.Event()

    async def away(consumer: ConsoleConsumer) -> bool:
        asked.set()
        raise OperationalError("the database is away")

    async with socket(key) as communicator, asyncio.timeout(DEADLINE):
        assert (await answer_of(communicator))["type"] == "websocket.accept"
        await frame_of(communicator)
        with monkeypatch.context() as patch:
            patch.setattr(ConsoleConsumer, "_may_watch", away)
            await asked.wait()
        await database_sync_to_async(lambda: User.objects.update(platform_role=""))()
        while (message := await answer_of(communicator))["type"] != "websocket.close":
            pass
    assert message["code"] == CLOSE_DENIED


class Builds:
    """Counts the reads; fails those whose number is in `failing`."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.count = 0
        self._failing = failing

    def __call__(self, sequence: int) -> str:
        self.count += 1
        if sequence in self._failing:
            raise OperationalError("the database is away")
        return str(sequence)


async def test_many_viewers_cost_one_reader() -> None:
    builds = Builds()
    publisher = Publisher(builds, period_seconds=0.01)
    viewers = [publisher.subscribe() for _ in range(200)]
    async with asyncio.timeout(DEADLINE):
        assert {await viewer.next() for viewer in viewers} == {"1"}
        await viewers[0].next()
    assert builds.count <= 4
    for viewer in viewers:
        viewer.close()


async def test_slow_viewer_skips_to_the_newest_frame() -> None:
    publisher = Publisher(Builds(), period_seconds=0.01)
    slow, quick = publisher.subscribe(), publisher.subscribe()
    async with asyncio.timeout(DEADLINE):
        await slow.next()
        while (newest := await quick.next()) != "5":
            pass
        assert await slow.next() == newest
    slow.close()
    quick.close()


async def test_reading_stops_with_the_last_viewer_and_starts_again() -> None:
    builds = Builds()
    publisher = Publisher(builds, period_seconds=0.01)
    viewer = publisher.subscribe()
    async with asyncio.timeout(DEADLINE):
        await viewer.next()
        viewer.close()
        task = publisher._task
        assert task is not None
        await task
        before = builds.count
        again = publisher.subscribe()
        assert int(await again.next()) > before - 1
    again.close()


async def test_lost_database_is_told_and_outlived() -> None:
    publisher = Publisher(Builds(frozenset({1, 2})), period_seconds=0.01)
    viewer = publisher.subscribe()
    async with asyncio.timeout(DEADLINE):
        assert json.loads(await viewer.next())["v"] == "trouble.v1"
        while (frame := await viewer.next()) != "3":
            assert json.loads(frame)["v"] == "trouble.v1"
    viewer.close()


@pytest.mark.django_db
def test_rates_are_of_the_last_minute() -> None:
    acme = tenant("acme")
    now = timezone.now().replace(second=30, microsecond=0)
    usage(acme, at=now, requests=60, tokens=300)
    usage(acme, at=now - timedelta(minutes=1), model="b", requests=60, tokens=300)
    usage(acme, at=now - timedelta(minutes=2), model="c", requests=6000, tokens=3000)
    figures = build_console_frame(seq=1, now=now).figures
    # Half of the previous minute is left of a sliding one.
    assert (figures.requests_per_second, figures.tokens_per_second) == (1.5, 15.0)
    assert (figures.requests, figures.failures) == (90.0, 1.5)


@pytest.mark.django_db
def test_frame_of_a_full_page_stays_small() -> None:
    pool()
    frame = build_console_frame(seq=1, now=timezone.now())
    assert len(encode(frame)) < 1500
