"""Logging in by an OpenID Connect provider: whom it lets in, as whom, with which roles, and what it cannot do."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.socialaccount.models import SocialAccount, SocialToken
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client
from pytest_django import Settings

from config.environment import Environment
from config.log_in import log_in_settings
from core.env import SettingsError, read
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Invitation, Membership, TenantRole, User
from tenants.policies.roles import Standing
from tests.dashboard.people import person, tenant
from tests.doubles.oidc import OidcProvider, running_provider
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db
OWNER = Standing("", "owner")
PHRASE = "a-long-and-new-phrase"


def environ(issuer: str) -> dict[str, str]:
    return {
        "GATEHOUSE_OIDC_ISSUER": issuer,
        "GATEHOUSE_OIDC_CLIENT_ID": "gatehouse",
        "GATEHOUSE_OIDC_CLIENT_SECRET": "client-secret-value",
        "GATEHOUSE_OIDC_NAME": "Acme ID",
    }


@pytest.fixture
def provider(settings: Settings) -> Iterator[OidcProvider]:
    with running_provider() as running:
        told = log_in_settings(read(Environment, environ(running.issuer)))
        settings.SOCIALACCOUNT_PROVIDERS = told["SOCIALACCOUNT_PROVIDERS"]
        settings.SOCIALACCOUNT_REQUESTS_TIMEOUT = DEADLINE_SECONDS
        yield running


def log_in(client: Client, *, then: str = "/") -> Any:
    """Through the provider and back, as a browser goes; the answer of our callback."""
    there = client.get("/oidc/sso/login/", {"next": then})
    assert there.status_code == 302, there.content
    back = requests.get(there["Location"], allow_redirects=False, timeout=DEADLINE_SECONDS).headers["Location"]
    assert back.startswith("http://testserver/oidc/sso/login/callback/")
    return client.get(back.removeprefix("http://testserver"))


def is_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_the_log_in_page_offers_the_provider(client: Client, provider: OidcProvider) -> None:
    page = client.get("/login/?next=/t/acme/").content.decode()
    assert "Log in with Acme ID" in page
    assert "/oidc/sso/login/?next=%2Ft%2Facme%2F" in page
    assert provider.client_secret not in page


def test_a_provider_without_a_name_is_called_in_the_readers_language(
    client: Client, provider: OidcProvider, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = {key: value for key, value in environ(provider.issuer).items() if key != "GATEHOUSE_OIDC_NAME"}
    settings.SOCIALACCOUNT_PROVIDERS = log_in_settings(read(Environment, unnamed))["SOCIALACCOUNT_PROVIDERS"]
    monkeypatch.setattr("dashboard.views.login.gettext", lambda text: f"≈{text}")
    assert "Log in with ≈single sign-on" in client.get("/login/").content.decode()


def test_without_a_provider_there_is_no_button_and_no_address(client: Client) -> None:
    assert "/oidc/" not in client.get("/login/").content.decode()
    assert client.get("/oidc/sso/login/").status_code == 404


def test_a_verified_address_is_its_persons(client: Client, provider: OidcProvider) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    provider.person["email"] = "Ada@Example.com"
    answer = log_in(client, then="/t/acme/usage/")
    assert (answer.status_code, answer["Location"]) == (302, "/t/acme/usage/")
    assert client.get("/t/acme/").status_code == 200
    account = SocialAccount.objects.get()
    assert (account.user.email, account.extra_data) == ("ada@example.com", {})
    assert not SocialToken.objects.exists()


def test_someone_known_is_found_by_subject_whatever_their_address_is_now(
    client: Client, provider: OidcProvider
) -> None:
    ada, eve = person("ada"), person("eve")
    log_in(client)
    provider.person |= {"email": "eve@example.com", "email_verified": True}
    log_in(again := Client())
    assert again.session["_auth_user_id"] == str(ada.pk) != str(eve.pk)


def test_another_issuers_same_subject_is_another_person(
    client: Client, provider: OidcProvider, settings: Settings
) -> None:
    person("ada")
    log_in(client)
    with running_provider() as other:
        other.person |= {"email": "eve@example.com"}
        eve = person("eve")
        told = log_in_settings(read(Environment, environ(other.issuer)))
        settings.SOCIALACCOUNT_PROVIDERS = told["SOCIALACCOUNT_PROVIDERS"]
        log_in(again := Client())
        assert again.session["_auth_user_id"] == str(eve.pk)


@pytest.mark.parametrize("verified", [False, None, "no"])
def test_an_address_that_is_not_verified_is_nobodys(client: Client, provider: OidcProvider, verified: object) -> None:
    person("ada", platform_role="superuser")
    provider.person["email_verified"] = verified
    answer = log_in(client)
    assert (answer.status_code, is_in(client)) == (403, False)
    assert "not verified your e-mail address" in answer.content.decode()


def test_an_address_is_verified_by_whoever_tells_it(client: Client, provider: OidcProvider) -> None:
    person("ada", platform_role="superuser")
    provider.person = {"sub": "u-1"}
    provider.id_token = {"email": "ada@example.com"}  # as some providers let people write it
    provider.userinfo = {"email": "eve@example.com", "email_verified": True}
    answer = log_in(client)
    assert (answer.status_code, is_in(client)) == (403, False)


def test_an_address_may_stand_in_the_user_information_alone(client: Client, provider: OidcProvider) -> None:
    person("ada")
    provider.person = {"sub": "u-1"}
    provider.userinfo = {"email": "ada@example.com", "email_verified": True}
    log_in(client)
    assert is_in(client)


def test_an_account_that_a_provider_opens_from_now_on_is_audited(client: Client, provider: OidcProvider) -> None:
    ada = person("ada")
    log_in(client)
    log_in(Client())
    event = AuditEvent.objects.get(action="user.provider_linked")
    assert (event.subject_id, event.actor_id, event.after) == (
        ada.pk,
        ada.pk,
        {"provider": "sso", "password": "removed"},
    )


def made_by_whoever_invited(acme: Any) -> Client:
    """An owner invites an address that is not theirs, and opens the link themselves; the browser that did."""
    new = services.create_invitation(acme, email="ada@example.com", role="viewer", standing=OWNER, actor=SYSTEM)
    intruder = Client()
    intruder.post(f"/invitations/{new.secret}/", {"display_name": "A", "password": PHRASE, "again": PHRASE})
    assert is_in(intruder)
    return intruder


def test_what_others_set_up_under_an_address_opens_nothing_once_its_owner_comes(
    client: Client, provider: OidcProvider
) -> None:
    intruder = made_by_whoever_invited(tenant("acme", olga=TenantRole.OWNER))
    services.create_role_mapping(claim="groups", value="ops", platform_role="operator", actor=SYSTEM)
    provider.person["groups"] = ["ops"]
    log_in(client)
    assert client.get("/console/overview/").status_code == 200
    assert intruder.get("/t/acme/").status_code == 302
    intruder.post("/login/", {"username": "ada@example.com", "password": PHRASE})
    assert not is_in(intruder)


def test_a_second_factor_that_others_may_have_set_up_is_not_joined(client: Client, provider: OidcProvider) -> None:
    made_by_whoever_invited(tenant("acme", olga=TenantRole.OWNER))
    services.create_role_mapping(claim="groups", value="ops", platform_role="operator", actor=SYSTEM)
    provider.person["groups"] = ["ops"]
    ada = User.objects.get(email="ada@example.com")
    TOTP.activate(ada, generate_totp_secret())
    answer = log_in(client)
    assert (answer.status_code, is_in(client)) == (403, False)
    assert "a second factor of its own" in answer.content.decode()
    assert (User.objects.get(pk=ada.pk).platform_role, SocialAccount.objects.count()) == ("", 0)
    services.reset_second_factor(ada.pk, actor=SYSTEM)
    log_in(client)
    assert client.get("/console/overview/").status_code == 200


def test_nobody_signs_up_who_is_not_invited(client: Client, provider: OidcProvider) -> None:
    answer = log_in(client)
    assert (answer.status_code, is_in(client)) == (403, False)
    assert "Nobody has invited you" in answer.content.decode()
    assert not User.objects.exists()


def test_who_is_invited_is_made_and_becomes_a_member(client: Client, provider: OidcProvider) -> None:
    acme = tenant("acme", olga=TenantRole.OWNER)
    services.create_invitation(acme, email="ada@example.com", role="viewer", standing=OWNER, actor=SYSTEM)
    provider.person["name"] = "Ada L."
    log_in(client)
    member = Membership.objects.get(user__email="ada@example.com")
    assert (member.role, member.source, member.user.display_name) == ("viewer", "manual", "Ada L.")
    assert not member.user.has_usable_password()
    assert Invitation.objects.get().accepted_by == member.user


def test_roles_follow_the_claims_at_each_log_in(client: Client, provider: OidcProvider) -> None:
    acme, bank = tenant("acme"), tenant("bank", ada=TenantRole.VIEWER)
    for group, role, where in (("dev", "developer", acme), ("lead", "admin", acme), ("fin", "billing", bank)):
        services.create_role_mapping(claim="realm.groups", value=group, tenant=where, tenant_role=role, actor=SYSTEM)
    services.create_role_mapping(claim="realm.groups", value="ops", platform_role="operator", actor=SYSTEM)

    def roles(*groups: str) -> tuple[str, dict[str, str]]:
        provider.person["realm"] = {"groups": list(groups)}
        log_in(Client())
        ada = User.objects.get(email="ada@example.com")
        return ada.platform_role, {one.tenant.slug: one.role for one in ada.memberships.all()}

    assert roles("dev", "lead", "fin", "ops", "other") == ("operator", {"acme": "admin", "bank": "viewer"})
    assert roles("dev") == ("", {"acme": "developer", "bank": "viewer"})
    assert roles() == ("", {"bank": "viewer"})
    removed = AuditEvent.objects.get(action="membership.removed")
    assert (removed.tenant_id, removed.before["source"]) == (acme.pk, "claims")
    assert "@" not in str(list(AuditEvent.objects.values_list("before", "after")))


def test_a_role_given_by_hand_is_not_touched_by_claims(client: Client, provider: OidcProvider) -> None:
    root = person("ada", platform_role="superuser")
    services.create_role_mapping(claim="groups", value="ops", platform_role="operator", actor=SYSTEM)
    provider.person["groups"] = ["ops"]
    log_in(client)
    root.refresh_from_db()
    assert (root.platform_role, root.platform_role_source) == ("superuser", "manual")


def test_losing_the_platform_role_ends_sessions_that_run(client: Client, provider: OidcProvider) -> None:
    services.create_role_mapping(claim="groups", value="ops", platform_role="operator", actor=SYSTEM)
    provider.person["groups"] = ["ops"]
    log_in(client)
    assert client.get("/console/overview/").status_code == 200
    provider.person["groups"] = []
    log_in(Client())
    assert client.get("/console/overview/")["Location"].startswith("/login/")


def test_someone_switched_off_is_not_let_in(client: Client, provider: OidcProvider) -> None:
    ada = person("ada")
    services.change_person(ada.pk, is_active=False, actor=SYSTEM)
    answer = log_in(client)
    assert (answer["Location"], is_in(client)) == ("/login/inactive/", False)
    assert "switched off" in client.get("/login/inactive/").content.decode()


def forge_with_secret(provider: OidcProvider) -> None:
    provider.algorithm, provider.signing_key = "HS256", provider.client_secret


def forge_without_key(provider: OidcProvider) -> None:
    provider.algorithm, provider.signing_key = "none", None


def forge_with_other_key(provider: OidcProvider) -> None:
    provider.signing_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.id_token.update(iss="http://elsewhere/realm"),
        lambda p: p.id_token.update(aud="another-client"),
        lambda p: p.id_token.update(exp=1),
        lambda p: p.userinfo.update(sub="someone-else"),
        lambda p: setattr(p, "refuses", "server_error"),
        lambda p: setattr(p, "client_secret", "not ours"),
        forge_with_secret,
        forge_without_key,
        forge_with_other_key,
    ],
)
def test_what_is_not_the_providers_word_to_us_lets_nobody_in(
    client: Client, provider: OidcProvider, change: Any
) -> None:
    person("ada")
    change(provider)
    answer = log_in(client)
    assert (answer.status_code, is_in(client)) == (401, False)
    assert "did not log you in" in answer.content.decode()


def test_an_answer_that_nobody_asked_for_lets_nobody_in(client: Client, provider: OidcProvider) -> None:
    person("ada")
    there = Client().get("/oidc/sso/login/")["Location"]
    back = requests.get(there, allow_redirects=False, timeout=DEADLINE_SECONDS).headers["Location"]
    assert client.get(back.removeprefix("http://testserver")).status_code == 401
    assert not is_in(client)


def test_a_provider_that_is_away_is_said_and_passwords_still_work(client: Client, provider: OidcProvider) -> None:
    person("ada")
    provider.broken = True
    assert client.get("/oidc/sso/login/").status_code == 401
    form = {"username": "ada@example.com", "password": "correct-horse-battery"}
    assert client.post("/login/", form)["Location"] == "/"


def test_saying_no_at_the_provider_leads_back(client: Client, provider: OidcProvider) -> None:
    provider.refuses = "access_denied"
    assert log_in(client)["Location"] == "/login/cancelled/"
    assert "You did not log in at the provider." in client.get("/login/cancelled/", follow=True).content.decode()


def test_no_account_is_tied_to_whoever_is_logged_in(client: Client, provider: OidcProvider) -> None:
    client.force_login(person("eve"))
    there = client.get("/oidc/sso/login/?process=connect")["Location"]
    back = requests.get(there, allow_redirects=False, timeout=DEADLINE_SECONDS).headers["Location"]
    assert client.get(back.removeprefix("http://testserver")).status_code == 403
    assert not SocialAccount.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"GATEHOUSE_OIDC_ISSUER": "acme.example"},
        {"GATEHOUSE_OIDC_CLIENT_ID": ""},
        {"GATEHOUSE_OIDC_CLIENT_SECRET": ""},
        {"GATEHOUSE_OIDC_CLIENT_SECRET_FILE": "/nowhere/secret"},
        {"GATEHOUSE_REQUIRE_MFA": "sometimes"},
    ],
)
def test_a_half_told_provider_stops_the_start(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        log_in_settings(read(Environment, {**environ("https://id.example"), **wrong}))


def test_the_secret_may_stand_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "secret"
    file.write_text("from-a-file\n")
    told = {**environ("https://id.example"), "GATEHOUSE_OIDC_CLIENT_SECRET": ""}
    made = log_in_settings(read(Environment, {**told, "GATEHOUSE_OIDC_CLIENT_SECRET_FILE": str(file)}))
    assert made["SOCIALACCOUNT_PROVIDERS"]["openid_connect"]["APPS"][0]["secret"] == "from-a-file"
