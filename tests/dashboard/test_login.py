"""Logging in, where it leads, and what it must not do."""

import pytest
from django.test import Client

from tenants.models import TenantRole
from tests.dashboard.people import PASSWORD, person, tenant

pytestmark = pytest.mark.django_db


def log_in(client: Client, name: str, *, password: str = PASSWORD, next_url: str = "") -> str:
    response = client.post(
        "/login/", {"username": f"{name}@example.com", "password": password, "next": next_url}, follow=False
    )
    return response.headers.get("Location", "")


def test_operator_lands_on_the_console(client: Client) -> None:
    person("olga", platform_role="operator")
    assert log_in(client, "olga") == "/"
    assert client.get("/").headers["Location"] == "/console/overview/"


def test_member_lands_in_their_portal(client: Client) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    log_in(client, "ada")
    assert client.get("/").headers["Location"] == "/t/acme/"


def test_person_without_a_tenant_is_told_whom_to_ask(client: Client) -> None:
    person("lone")
    log_in(client, "lone")
    assert "You belong to no tenant yet" in client.get("/").content.decode()


def test_address_is_matched_without_regard_to_case(client: Client) -> None:
    person("olga", platform_role="operator")
    response = client.post("/login/", {"username": "Olga@Example.com", "password": PASSWORD})
    assert response.status_code == 302


def test_wrong_password_says_so_and_keeps_the_address(client: Client) -> None:
    person("olga")
    response = client.post("/login/", {"username": "olga@example.com", "password": "wrong"})
    text = response.content.decode()
    assert response.status_code == 200
    assert 'role="alert"' in text
    assert 'value="olga@example.com"' in text
    assert "wrong" not in text.replace("wrong-", "")


def test_unknown_and_known_addresses_are_refused_alike(client: Client) -> None:
    person("olga")
    texts = []
    for name in ("olga@example.com", "nobody@example.com"):
        response = client.post("/login/", {"username": name, "password": "wrong"})
        texts.append(response.context["form"].non_field_errors())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example/", "/\\evil.example"])
def test_next_never_leads_to_another_site(client: Client, elsewhere: str) -> None:
    person("olga", platform_role="operator")
    assert log_in(client, "olga", next_url=elsewhere) == "/"


def test_next_leads_back_to_the_page_that_was_asked_for(client: Client) -> None:
    tenant("acme", ada=TenantRole.OWNER)
    asked = client.get("/t/acme/usage/?range=7d").headers["Location"]
    assert asked == "/login/?next=/t/acme/usage/%3Frange%3D7d"
    assert log_in(client, "ada", next_url="/t/acme/usage/?range=7d") == "/t/acme/usage/?range=7d"


def test_login_gives_the_session_a_new_key(client: Client) -> None:
    person("olga", platform_role="operator")
    session = client.session
    session["planted"] = True
    session.save()
    planted = session.session_key
    log_in(client, "olga")
    assert client.session.session_key != planted


def test_logout_needs_a_post_and_ends_the_session(client: Client) -> None:
    person("olga", platform_role="operator")
    log_in(client, "olga")
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/").headers["Location"] == "/login/"
    assert client.get("/console/overview/").status_code == 302


def test_language_is_remembered_beyond_the_session(client: Client) -> None:
    response = client.post("/language/", {"language": "zh-hans", "next": "/login/"})
    assert response.headers["Location"] == "/login/"
    assert int(str(response.cookies["django_language"]["max-age"])) > 300 * 24 * 3600
    page = client.get("/login/").content.decode()
    assert '<html lang="zh-hans"' in page
    assert "登录" in page


def test_language_switch_leads_nowhere_else(client: Client) -> None:
    response = client.post("/language/", {"language": "zh-hans", "next": "https://evil.example/"})
    assert response.headers["Location"] == "/"


def test_scripts_need_the_nonce_of_the_answer(client: Client) -> None:
    response = client.get("/login/")
    policy = response.headers["Content-Security-Policy"]
    nonce = policy.split("'nonce-")[1].split("'")[0]
    text = response.content.decode()
    assert text.count("<script") == text.count(f'nonce="{nonce}"')
    assert "unsafe-eval" not in policy
    assert " onclick=" not in text
