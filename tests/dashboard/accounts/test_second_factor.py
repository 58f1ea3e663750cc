"""The second step of logging in: what it takes, what it refuses, who must have it, and what the database shows."""

import base64
import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.test import Client
from pytest_django import Settings
from redis.exceptions import ConnectionError as RedisConnectionError
from rest_framework.test import APIClient

from dashboard.login_guard import ATTEMPTS, PAUSE_SECONDS
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, TenantRole, User
from tests.dashboard.people import PASSWORD, person, tenant

pytestmark = pytest.mark.django_db
SECRET = base64.b32encode(b"12345678901234567890").decode()  # RFC 6238's


class Clock:
    """Time as codes see it, in seconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now

    def code(self, *, steps: int = 0, secret: str = SECRET) -> str:
        return str(totp.format_hotp_value(totp.hotp_value(secret, int(self.now) // 30 + steps)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(totp.time, "time", clock.time)
    return clock


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def with_app(user: User) -> User:
    totp.TOTP.activate(user, SECRET)
    return user


def password(client: Client, name: str = "olga", *, then: str = "") -> str:
    form = {"username": f"{name}@example.com", "password": PASSWORD, "next": then}
    return client.post("/login/", form).headers.get("Location", "")


def is_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_after_the_password_a_code_is_asked_for(client: Client, clock: Clock) -> None:
    with_app(person("olga", platform_role="operator"))
    assert password(client, then="/console/engines/") == "/login/second-factor/"
    assert not is_in(client)
    assert client.get("/console/engines/")["Location"].startswith("/login/")
    answer = client.post("/login/second-factor/", {"code": clock.code()})
    assert (answer.status_code, answer["Location"]) == (302, "/console/engines/")
    assert client.get("/console/engines/").status_code == 200


def test_nobody_reaches_the_second_step_without_the_first(client: Client) -> None:
    with_app(person("olga"))
    for answer in (client.get("/login/second-factor/"), client.post("/login/second-factor/", {"code": "000000"})):
        assert (answer.status_code, answer["Location"]) == (302, "/login/")


@pytest.mark.parametrize("steps", [-1, 0, 1])
def test_a_clock_that_is_half_a_minute_off_does(client: Client, clock: Clock, steps: int) -> None:
    with_app(person("olga"))
    password(client)
    spaced = f"{clock.code(steps=steps)[:3]} {clock.code(steps=steps)[3:]}"
    assert client.post("/login/second-factor/", {"code": spaced}).status_code == 302
    assert is_in(client)


@pytest.mark.parametrize("steps", [-3, 3])
def test_one_that_is_further_off_does_not(client: Client, clock: Clock, steps: int) -> None:
    with_app(person("olga"))
    password(client)
    answer = client.post("/login/second-factor/", {"code": clock.code(steps=steps)})
    assert "not right" in answer.content.decode()
    assert not is_in(client)


def test_a_code_opens_once_also_when_the_cache_forgot(client: Client, clock: Clock) -> None:
    with_app(person("olga"))
    password(client)
    client.post("/login/second-factor/", {"code": clock.code()})
    cache.clear()
    password(again := Client())
    for steps in (0, -1):
        assert again.post("/login/second-factor/", {"code": clock.code(steps=steps)}).status_code == 200
    clock.now += 30
    assert again.post("/login/second-factor/", {"code": clock.code()}).status_code == 302


def test_codes_are_not_guessed(client: Client, clock: Clock) -> None:
    with_app(person("olga"))
    password(client)
    for _ in range(ATTEMPTS):
        assert client.post("/login/second-factor/", {"code": "000000"}, REMOTE_ADDR="10.0.0.1").status_code == 200
    refused = client.post("/login/second-factor/", {"code": clock.code()}, REMOTE_ADDR="10.0.0.2")
    assert (refused.status_code, refused["Retry-After"]) == (429, str(PAUSE_SECONDS))
    assert "Too many attempts" in refused.content.decode()
    assert not is_in(client)


def test_people_get_in_while_the_cache_is_away(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with_app(person("olga"))

    def away(*_: object, **__: object) -> None:
        raise RedisConnectionError("gone")

    for name in ("add", "incr", "get", "set", "delete"):
        monkeypatch.setattr(cache, name, away)
    password(client)
    assert client.post("/login/second-factor/", {"code": clock.code()}).status_code == 302


def confirm(client: Client) -> None:
    client.post("/security/confirm/", {"password": PASSWORD})


def set_up(client: Client, clock: Clock) -> list[str]:
    """An authenticator app through the pages; the recovery codes that are shown then."""
    confirm(client)
    secret = client.get("/security/app/").context["form"].secret
    answer = client.post("/security/app/", {"code": clock.code(secret=secret)}, follow=True)
    return list(answer.context["unused_codes"])


def test_setting_up_needs_the_password_anew(client: Client) -> None:
    client.force_login(person("olga"))
    for address in ("app/", "passkeys/add/", "recovery-codes/renew/"):
        answer = client.get(f"/security/{address}")
        assert answer["Location"] == f"/security/confirm/?{urlencode({'next': f'/security/{address}'})}"
    wrong = client.post("/security/confirm/?next=/security/app/", {"password": "wrong"})
    assert "not right" in wrong.content.decode()
    right = client.post("/security/confirm/?next=/security/app/", {"password": PASSWORD})
    assert right["Location"] == "/security/app/"
    assert client.get("/security/app/").status_code == 200


def test_recovery_codes_are_shown_once_and_work_once(client: Client, clock: Clock) -> None:
    client.force_login(person("olga"))
    codes = set_up(client, clock)
    assert len(set(codes)) == 10
    again = client.get("/security/recovery-codes/").content.decode()
    assert not any(code in again for code in codes)
    assert "10 codes are left" in again
    for used, status in ((codes[3], 302), (codes[3], 200), (codes[4], 302)):
        password(fresh := Client())
        assert fresh.post("/login/second-factor/", {"code": used}).status_code == status
    assert "8 are left" in client.get("/security/").content.decode()


def test_new_recovery_codes_end_the_old_ones(client: Client, clock: Clock) -> None:
    client.force_login(person("olga"))
    old = set_up(client, clock)
    new = client.post("/security/recovery-codes/renew/", follow=True).context["unused_codes"]
    assert not set(old) & set(new)
    password(fresh := Client())
    assert fresh.post("/login/second-factor/", {"code": old[0]}).status_code == 200
    assert fresh.post("/login/second-factor/", {"code": new[0]}).status_code == 302


def test_the_database_holds_no_secret_that_can_be_read(client: Client, clock: Clock) -> None:
    olga = person("olga")
    client.force_login(olga)
    confirm(client)
    secret = client.get("/security/app/").context["form"].secret
    sessions = str([session.get_decoded() for session in Session.objects.all()])
    assert secret not in sessions
    codes = client.post("/security/app/", {"code": clock.code(secret=secret)}, follow=True).context["unused_codes"]
    kept = json.dumps([*Authenticator.objects.values_list("data", flat=True)])
    kept += str([session.get_decoded() for session in Session.objects.all()])
    assert secret not in kept
    assert not any(code in kept for code in codes)
    told = list(AuditEvent.objects.filter(action="second_factor.added").values_list("actor_id", "after"))
    assert told == [(olga.pk, {"kind": "totp"})]


def test_removing_the_app_takes_the_codes_too(client: Client, clock: Clock) -> None:
    olga = person("olga")
    client.force_login(olga)
    set_up(client, clock)
    assert "Remove the authenticator app?" in client.get("/security/app/remove/").content.decode()
    client.post("/security/app/remove/")
    assert not Authenticator.objects.exists()
    assert password(Client()) == "/"
    assert AuditEvent.objects.filter(action="second_factor.removed", actor_id=olga.pk).exists()


def test_a_changed_secret_key_lets_nobody_in_and_fails_nothing(
    client: Client, clock: Clock, settings: Settings
) -> None:
    with_app(person("olga"))
    old = settings.SECRET_KEY
    settings.SECRET_KEY = "another" * 8
    password(client)
    assert client.post("/login/second-factor/", {"code": clock.code()}).status_code == 200
    settings.SECRET_KEY_FALLBACKS = [old]
    assert client.post("/login/second-factor/", {"code": clock.code()}).status_code == 302


@pytest.mark.parametrize(
    ("of", "role", "led"), [("platform", "operator", True), ("all", "", True), ("platform", "", False)]
)
def test_who_must_have_one_does_nothing_else_before(
    client: Client, clock: Clock, settings: Settings, of: str, role: str, led: bool
) -> None:
    tenant("acme", olga=TenantRole.OWNER)
    User.objects.update(platform_role=role)
    settings.REQUIRE_SECOND_FACTOR_OF = of
    password(client)
    pages = ["/", "/t/acme/", "/t/acme/keys/", "/t/acme/members/"] + (["/console/overview/"] if role else [])
    for page in pages:
        answer = client.get(page)
        assert (answer.headers.get("Location") == "/security/") is led, page
    assert client.get("/api/tenants/acme/").status_code == (403 if led else 200)
    if led:
        assert "asks you for a second factor" in client.get("/security/").content.decode()
        set_up(client, clock)
        assert client.get("/t/acme/").status_code == 200
        assert client.get("/api/tenants/acme/").status_code == 200


def test_the_backoffice_asks_for_it_too(client: Client, settings: Settings) -> None:
    client.force_login(person("root", platform_role="superuser"))
    settings.REQUIRE_SECOND_FACTOR_OF = "platform"
    assert client.get("/backoffice/", follow=True).redirect_chain[-1][0] == "/security/"


def test_scripts_tokens_are_not_asked_for_it(settings: Settings) -> None:
    new = services.create_access_token(person("root", platform_role="superuser"), name="ci", actor=SYSTEM)
    settings.REQUIRE_SECOND_FACTOR_OF = "all"
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Token {new.secret}")
    assert api.get("/api/people/").status_code == 200


def test_the_backoffice_shows_no_second_factors(client: Client) -> None:
    client.force_login(person("root", platform_role="superuser"))
    page = client.get("/backoffice/").content.decode()
    assert not any(app in page for app in ("/backoffice/mfa/", "/backoffice/socialaccount/", "/backoffice/account/"))


def test_a_new_password_ends_the_other_sessions(client: Client) -> None:
    olga = person("olga", platform_role="operator")
    client.force_login(olga)
    password(other := Client())
    form = {"old_password": "wrong", "new_password1": "a-new-long-phrase", "new_password2": "a-new-long-phrase"}
    assert client.post("/security/password/", form).status_code == 422
    assert client.post("/security/password/", {**form, "old_password": PASSWORD})["Location"] == "/security/"
    assert client.get("/console/overview/").status_code == 200
    assert other.get("/console/overview/").status_code == 302
    olga.refresh_from_db()
    assert olga.check_password("a-new-long-phrase")
    assert AuditEvent.objects.filter(action="user.password_changed", actor_id=olga.pk).exists()


@pytest.mark.parametrize(
    ("first", "second", "why"), [("short", "short", "too short"), ("a-new-long-phrase", "another", "match")]
)
def test_a_bad_new_password_is_refused(client: Client, first: str, second: str, why: str) -> None:
    client.force_login(person("olga"))
    form = {"old_password": PASSWORD, "new_password1": first, "new_password2": second}
    answer = client.post("/security/password/", form)
    assert answer.status_code == 422
    assert why in answer.content.decode()


def test_who_has_no_password_confirms_with_a_code(client: Client, clock: Clock) -> None:
    olga = with_app(person("olga"))
    olga.set_unusable_password()
    olga.save()
    client.force_login(olga)
    led = client.get("/security/passkeys/add/")["Location"]
    assert led.startswith("/security/confirm/code/?next=")
    assert "not right" in client.post(led, {"code": "000000"}).content.decode()
    assert client.post(led, {"code": clock.code()})["Location"] == "/security/passkeys/add/"
    assert client.get("/security/passkeys/add/").status_code == 200


def test_who_has_neither_sets_one_up_without_confirming(client: Client) -> None:
    olga = person("olga")
    olga.set_unusable_password()
    olga.save()
    client.force_login(olga)
    assert client.get("/security/app/").status_code == 200
    assert "have no password here" in client.get("/security/password/").content.decode()


NONSENSE = [
    "", "null", "[]", "{}", "1", '"x"', "{", '{"id": 1}', '{"response": []}', '{"response": {"userHandle": 1}}',
    '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"userHandle": "AA"}}',
    '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"clientDataJSON": "AA", "authenticatorData": "AA", '
    '"signature": "AA", "userHandle": "AA", "attestationObject": "AA"}}',
]  # fmt: skip


@pytest.mark.parametrize("credential", NONSENSE)
def test_a_passkey_that_is_nonsense_lets_nobody_in_and_is_not_added(client: Client, credential: str) -> None:
    client.get("/login/passkey/", headers={"accept": "application/json"})
    answer = client.post("/login/passkey/", {"credential": credential})
    assert (answer.status_code, answer["Location"]) == (302, "/login/")
    assert not is_in(client)
    client.force_login(person("olga"))
    confirm(client)
    client.get("/security/passkeys/add/")
    answer = client.post("/security/passkeys/add/", {"credential": credential, "name": "x"})
    assert answer.status_code == 200
    assert "could not be added" in answer.content.decode()
    assert not Authenticator.objects.exists()


@pytest.mark.parametrize("credential", NONSENSE)
def test_nonsense_is_no_second_factor_and_confirms_nothing(client: Client, credential: str) -> None:
    with_app(person("olga"))
    password(client)
    client.get("/login/second-factor/")
    assert client.post("/login/second-factor/", {"credential": credential}).status_code == 200
    assert not is_in(client)
