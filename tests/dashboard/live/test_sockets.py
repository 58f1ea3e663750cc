"""`/ws/live` from end to end: who may watch, what they get, and that they stop getting it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.live.base import Viewer
from dashboard.live.connections import Connection
from dashboard.live.consumer import CLOSE_DENIED, LiveConsumer, is_same_origin
from dashboard.live.feeds.fleet import FleetFeed
from dashboard.live.hub import close_shared_hub, shared_hub
from dashboard.live.people import RECHECK_SECONDS
from gateway.relay.guards import ABORT
from gpupool.leases.default import close_shared_store
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import TenantRole, TenantState, User
from tenants.policies.roles import Standing
from tenants.services.members import change_member_role, remove_member
from tests.dashboard.live.feeds import CountFeed, OwnersFeed, hub_with, steady
from tests.dashboard.live.sockets import DEADLINE, session_of, socket
from tests.dashboard.people import person, pool, tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub_is_closed(valkey_url: str) -> AsyncIterator[None]:
    """Begins without an earlier test's frames: its leader's fence may be above ours, whose store was emptied."""
    yield
    await close_shared_hub()
    await close_shared_store()


async def operator_key() -> str:
    return await database_sync_to_async(lambda: session_of(person("olga", platform_role="operator")))()


async def test_operator_gets_a_keyframe_and_then_frames_in_sequence() -> None:
    await database_sync_to_async(pool)()
    key, began = await operator_key(), timezone.now().timestamp()
    async with socket(key) as page:
        await page.subscribe("fleet")
        assert await page.told("subscribed") == {"n": 1, "op": "subscribed", "period": 1.0}
        frames = [await page.frame() for _ in range(3)]
    first = frames[0]
    assert (first["n"], first["ch"], first["v"]) == (1, "fleet", "fleet.v1")
    # Sequences are an epoch's; another begins where the reader of another test's sockets hands over.
    within = [(one, following) for one, following in pairwise(frames) if one["epoch"] == following["epoch"]]
    assert within
    assert all(following["seq"] == one["seq"] + 1 for one, following in within)
    assert first["figures"]["ready"] == 1
    assert first["devices"][0]["name"] == "NVIDIA H100"
    assert began - 10 < first["at"] < timezone.now().timestamp()


async def test_who_is_not_logged_in_is_refused_before_the_handshake_ends() -> None:
    for key in (await database_sync_to_async(lambda: session_of(None))(), "0123456789abcdefghijklmnopqrstuv", ""):
        async with socket(key) as page:
            assert not page.accepted


@pytest.mark.parametrize("origin", ["http://testserver:9999", "http://evil.example", "null", None])
async def test_pages_of_another_origin_are_refused_before_the_handshake_ends(origin: str | None) -> None:
    async with socket(await operator_key(), origin=origin) as page:
        assert not page.accepted


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


@pytest.mark.parametrize(("origin", "same"), [(b"https://gate.example", True), (b"http://gate.example", False)])
def test_where_people_come_by_https_a_page_that_came_by_http_is_another(
    origin: bytes, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SESSION_COOKIE_SECURE", True)
    assert is_same_origin({"headers": [(b"host", b"gate.example"), (b"origin", origin)]}) is same


@pytest.mark.parametrize(
    ("origin", "trusted"),
    [
        (b"https://console.gate.example", True),
        (b"https://gate.example", True),
        (b"https://one.example", True),
        (b"http://console.gate.example", False),
        (b"https://evilgate.example", False),
        (b"https://gate.example.evil.example", False),
        (b"https://console.one.example", False),
    ],
)
def test_origins_are_trusted_as_those_of_forms_are(
    origin: bytes, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CSRF_TRUSTED_ORIGINS", ["https://*.gate.example", "https://one.example"])
    assert is_same_origin({"headers": [(b"host", b"inner:8000"), (b"origin", origin)]}) is trusted


async def test_members_watch_their_own_tenant_and_nothing_else() -> None:
    def prepare() -> str:
        tenant("bolt", bea=TenantRole.OWNER)
        tenant("acme", ada=TenantRole.DEVELOPER)
        return session_of(User.objects.get(email="ada@example.com"))

    async with socket(await database_sync_to_async(prepare)()) as page:
        await page.subscribe("limits", "tenant:acme", n=1)
        assert (await page.told("subscribed"))["n"] == 1
        assert (await page.frame())["limits"] == []
        for n, (channel, scope, code) in enumerate(
            [
                ("limits", "tenant:bolt", "membership"),
                ("limits", "tenant:nobody", "membership"),  # no other word than for one that exists
                ("fleet", "", "role"),
                ("limits", "", "role"),
                ("nothing", "", "unknown"),
            ],
            start=2,
        ):
            await page.subscribe(channel, scope, n=n)
            refusal = await page.told("error")
            assert (refusal["n"], refusal["code"]) == (n, code)


async def test_platform_people_watch_any_tenant() -> None:
    await database_sync_to_async(tenant)("acme")
    async with socket(await operator_key()) as page:
        await page.subscribe("limits", "tenant:acme")
        assert (await page.frame())["limits"] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"op":"subscribe"}',
        '{"op":"drop","n":1}',
        '{"op":"subscribe","n":"1","channel":"fleet","scope":""}',
        '{"op":"subscribe","n":0,"channel":"fleet","scope":""}',
        '{"op":"subscribe","n":256,"channel":"fleet","scope":""}',
        '{"op":"subscribe","n":1,"channel":"fleet","scope":"a\\u0000b"}',
        '{"op":"subscribe","n":1,"channel":"fleet","scope":"' + "x" * 200 + '"}',
        "\ud800",
    ],
)
async def test_what_is_no_message_is_answered_and_hurts_nothing(text: str) -> None:
    async with socket(await operator_key()) as page:
        await page.say_text(text)
        assert (await page.told("error"))["code"] in ("bad_message", "unknown")
        await page.subscribe("fleet")
        assert (await page.frame())["ch"] == "fleet"


async def test_a_session_that_cannot_be_one_spoils_nobody_elses_handshake() -> None:
    good = await operator_key()
    keys = ['"aaaaaaaa\\000"', good, "a" * 4000, "%00" * 12]

    async def accepted(key: str) -> bool:
        async with socket(key) as page:
            return page.accepted

    assert await asyncio.gather(*map(accepted, keys)) == [False, True, False, False]


async def test_nothing_that_was_said_behind_an_abuse_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    async with socket(await operator_key()) as page:
        for _ in range(3):
            await page.say_text("x" * 5000)
        await page.subscribe("fleet")
        assert (await page.closed())[0] == 1009
        assert await page.nothing()  # a second close would be an error of ours
        assert not shared_hub()._connections


async def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.live.consumer._SEND_SECONDS", 0.1)
    monkeypatch.setattr("dashboard.live.consumer._CLOSE_SECONDS", 0.1)
    hub_with(OwnersFeed())
    aborted = asyncio.Event()
    consumer = LiveConsumer()
    scope: Any = {ABORT: aborted.set}
    consumer.scope = scope

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    consumer.base_send = never
    viewer = Viewer(user_id=1, platform_role="operator")
    connection = Connection("session", viewer)
    shared_hub().join(connection)
    connection.answer("{}")
    await asyncio.wait_for(consumer._write(connection), DEADLINE)
    assert aborted.is_set()
    assert not shared_hub()._connections


async def test_sockets_of_one_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.live.hub._MOST_OF_A_SESSION", 2)
    key = await operator_key()
    async with socket(key), socket(key), socket(key) as third:
        assert await third.closed() == (1013, "")


@pytest.mark.parametrize("channel", ["fleet", "gpumem"])
async def test_a_node_is_read_under_one_spelling(channel: str) -> None:
    async with socket(await operator_key()) as page:
        for text in ("{0}", "urn:uuid:{0}", "{{{0}}}"):
            await page.subscribe(channel, "node:" + text.format("0190A0B0-0000-7000-8000-00000000000A"))
            assert (await page.told("error"))["code"] == "role"


async def test_huge_and_binary_messages_close_the_socket() -> None:
    key = await operator_key()
    async with socket(key) as page:
        await page.say_text("x" * 5000)
        assert (await page.closed())[0] == 1009
    async with socket(key) as page:
        await page.say_bytes(b"\x00\x01")
        assert (await page.closed())[0] == 1009


async def test_subscriptions_and_messages_of_a_socket_are_bounded() -> None:
    async with socket(await operator_key()) as page:
        for n in range(1, 18):
            await page.subscribe("fleet", n=n)
        assert (await page.told("error"))["code"] == "too_many"
        for _ in range(300):  # too many in one stretch or the next, should one end meanwhile
            await page.say(op="unsubscribe", n=99)
        assert (await page.closed())[0] == 1008


async def test_nothing_comes_after_unsubscribing() -> None:
    async with socket(await operator_key()) as page:
        await page.subscribe("fleet")
        await page.frame()
        await page.say(op="unsubscribe", n=1)
        await page.subscribe("fleet", n=2)
        await page.told("subscribed")
        assert {(await page.said())["n"] for _ in range(3)} == {2}


LOSSES: dict[str, tuple[Callable[[User, str], object], str]] = {
    "deactivated": (lambda user, _: services.change_person(user.pk, is_active=False, actor=SYSTEM), "signed_out"),
    "role lowered": (lambda user, _: services.change_person(user.pk, platform_role="", actor=SYSTEM), "signed_out"),
    "logged out": (lambda _, key: SessionStore(key).flush(), "signed_out"),
}


async def test_whoever_watches_is_looked_at_anew_each_five_seconds() -> None:
    assert (RECHECK_SECONDS, shared_hub()._people._recheck_seconds) == (5.0, 5.0)


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_socket_closes_at_once_when_its_person_may_watch_no_longer(loss: str) -> None:
    user = await database_sync_to_async(person)("olga", platform_role="operator")
    key = await database_sync_to_async(session_of)(user)
    lose, reason = LOSSES[loss]
    hub_with(FleetFeed(), recheck_seconds=3600)  # by the hint, and not by the next look
    async with socket(key) as page:
        await page.subscribe("fleet")
        await page.frame()
        await database_sync_to_async(lose)(user, key)
        assert await page.closed() == (CLOSE_DENIED, reason)


@pytest.mark.parametrize(("loss", "reason"), [("removed", "membership"), ("suspended", "suspended"), ("role", "role")])
async def test_a_members_socket_closes_at_once_with_the_membership(loss: str, reason: str) -> None:
    def prepare() -> tuple[object, str]:
        acme = tenant("acme", ada=TenantRole.ADMIN, owen=TenantRole.OWNER)
        return acme, session_of(User.objects.get(email="ada@example.com"))

    def lose() -> None:
        ada = User.objects.get(email="ada@example.com")
        match loss:
            case "removed":
                remove_member(acme, ada.pk, standing=Standing("operator", None), actor=SYSTEM)
            case "suspended":
                services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
            case _:
                change_member_role(acme, ada.pk, "viewer", standing=Standing("operator", None), actor=SYSTEM)

    acme: Any
    acme, key = await database_sync_to_async(prepare)()
    feed = OwnersFeed()
    hub_with(feed)
    async with socket(key) as page:
        await page.subscribe("owners", "tenant:acme")
        await page.frame()
        await database_sync_to_async(lose)()
        assert await page.closed() == (CLOSE_DENIED, reason)


async def test_without_any_hint_the_next_look_finds_it() -> None:
    hub_with(OwnersFeed(), recheck_seconds=0.05)
    user = await database_sync_to_async(person)("olga", platform_role="operator")
    async with socket(await database_sync_to_async(session_of)(user)) as page:
        await page.subscribe("owners")
        await page.frame()
        await database_sync_to_async(lambda: User.objects.update(platform_role=""))()
        assert await page.closed() == (CLOSE_DENIED, "role")


async def test_lost_right_is_noticed_after_the_database_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(OwnersFeed(), recheck_seconds=0.05)
    user = await database_sync_to_async(person)("olga", platform_role="operator")
    key = await database_sync_to_async(session_of)(user)
    asked = threading.Event()

    def away(_: object) -> None:
        asked.set()
        raise OperationalError("the database is away")

    async with socket(key) as page:
        await page.subscribe("owners")
        await page.frame()
        with monkeypatch.context() as patch:
            patch.setattr("dashboard.live.people.read_viewers", away)
            await asyncio.to_thread(asked.wait, DEADLINE)
            await page.frame()  # it goes on meanwhile
        await database_sync_to_async(lambda: User.objects.update(platform_role=""))()
        assert await page.closed() == (CLOSE_DENIED, "role")


async def test_sockets_end_when_nobody_can_say_for_long_who_may_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(OwnersFeed(), recheck_seconds=0.05)
    key = await operator_key()
    asked, answered = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        asked.set()
        answered.wait(DEADLINE)
        raise OperationalError("the database is away")

    async with socket(key) as page:
        await page.subscribe("owners")
        await page.frame()
        with monkeypatch.context() as patch:
            patch.setattr("dashboard.live.people.BLIND_SECONDS", 0.3)  # not before: a look may take longer here
            patch.setattr("dashboard.live.people.read_viewers", hang)
            try:
                await asyncio.to_thread(asked.wait, DEADLINE)
                assert (await page.closed())[0] == 1013  # the page tries again
            finally:
                answered.set()


async def test_sockets_end_when_looks_at_people_go_wrong_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(OwnersFeed(), recheck_seconds=0.05)

    def fail(_: object) -> None:
        raise KeyError("a mistake of ours")

    async with socket(await operator_key()) as page:
        await page.subscribe("owners")
        await page.frame()
        monkeypatch.setattr("dashboard.live.people.BLIND_SECONDS", 0.3)
        monkeypatch.setattr("dashboard.live.people.read_viewers", fail)
        assert (await page.closed())[0] == 1013


async def test_people_are_looked_at_though_the_hub_begins_anew_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.live.hub._RESTART_SECONDS", 0.01)
    hub_with(OwnersFeed(), recheck_seconds=0.1, url=None)

    async def fail(_: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("dashboard.live.hub.Leader.run", fail)
    async with socket(await operator_key()) as page:
        await page.subscribe("owners")
        await page.told("subscribed")
        await database_sync_to_async(lambda: User.objects.update(platform_role=""))()
        assert await page.closed() == (CLOSE_DENIED, "role")


async def test_a_mistake_in_a_look_up_leaves_no_handshake_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = hub_with(OwnersFeed())
    key = await operator_key()

    def fail(_: object) -> None:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr("dashboard.live.people.read_viewers", fail)
        with pytest.raises(KeyError):
            await asyncio.wait_for(hub.admit(key), DEADLINE)
    async with socket(key) as page:
        assert page.accepted


async def test_sessions_that_are_pruned_are_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[str] = []
    monkeypatch.setattr("core.bus.hint", lambda section, _: hints.append(section))

    def prune() -> None:
        Session.objects.filter(session_key=session_of(None)).update(expire_date=timezone.now())
        Session.objects.create(session_key="b" * 32, session_data="", expire_date=timezone.now())
        SessionStore.clear_expired()
        assert not hints
        SessionStore(session_of(None)).flush()

    await database_sync_to_async(prune)()
    assert hints == ["people"]


async def test_a_page_whose_handshake_is_refused_can_ask_why(client: Client) -> None:
    def ask() -> tuple[int, bytes, int, bytes]:
        stranger = client.get(reverse("live-standing"))
        client.force_login(person("ada"))
        member = client.get(reverse("live-standing"))
        return stranger.status_code, stranger.content, member.status_code, member.content

    assert await database_sync_to_async(ask)() == (403, b"signed_out", 204, b"")


async def test_two_hundred_sockets_get_every_frame_of_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of `python -m bench.sockets`, which measures what it costs."""
    steady(monkeypatch)
    hub_with(CountFeed(period_seconds=0.2))
    key = await operator_key()

    async def follow() -> list[int]:
        async with socket(key) as page:
            await page.subscribe("count")
            return [int((await page.frame())[2:]) for _ in range(5)]

    for numbers in await asyncio.gather(*(follow() for _ in range(200))):
        assert numbers == list(range(numbers[0], numbers[0] + 5))  # what a second one read would be missing
