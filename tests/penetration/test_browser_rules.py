"""What every page holds to, whoever asks: log-in first, CSRF, a strict policy, no way out, a new session at log-in."""

from typing import Final

import pytest
from django.conf import settings
from django.test import Client

from tenants.actor import SYSTEM
from tenants.models import TenantRole
from tenants.policies.roles import Standing
from tenants.services import add_member, create_user, remove_member
from tests.dashboard.people import PASSWORD, person, tenant
from tests.factories import make_key
from tests.penetration.addresses import fill, pages
from tests.penetration.operations import WRITING, filled, operations
from tests.rows import Rows, one_of_everything

pytestmark = pytest.mark.django_db

OPEN: Final = frozenset(
    {
        "/healthz",
        "/readyz",
        "/metrics",
        "/favicon.ico",
        "/login/",
        "/language/",
        "/logout/",
        "/invitations/<str:secret>/",
    }
)
"""Pages for everybody; the probes tell no more than that we are up, and are tested with the gateway."""
DOORS: Final = frozenset({"/tokenize"})
"""Of applications, which come with a key: a session is worth nothing there."""
CHARTS: Final = "style-src 'self' 'unsafe-inline'"


@pytest.fixture
def rows() -> Rows:
    return one_of_everything()


@pytest.fixture
def superuser(rows: Rows) -> Client:
    client = Client()
    client.force_login(rows.superuser)
    return client


def ours() -> list[str]:
    return [route for route in pages() if route.startswith(("/console/", "/t/", "/exports/", "/views/"))]


def test_strangers_are_asked_to_log_in_before_anything_else(rows: Rows) -> None:
    wrong = []
    for route in ours():
        for method in ("get", "post"):
            answer = getattr(Client(), method)(fill(route, rows.addresses))
            to = answer.headers.get("Location", "")
            if answer.status_code != 405 and not (answer.status_code == 302 and to.startswith("/login/?next=")):
                wrong.append((method, route, answer.status_code))
    assert wrong == []


def test_no_page_takes_a_form_without_its_token(rows: Rows) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rows.superuser)
    taken = [route for route in pages() if client.post(fill(route, rows.addresses)).status_code not in (403, 404, 405)]
    assert [route for route in taken if route not in DOORS] == []


def test_no_operation_takes_a_session_without_the_token_of_its_pages(rows: Rows) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rows.superuser)
    written = [one for one in operations() if one[0] in WRITING]
    assert len(written) > 50
    statuses = {
        (method, path): getattr(client, method)(
            filled(path, rows.addresses), "{}", content_type="application/json", headers={"If-Match": "*"}
        ).status_code
        for method, path in written
    }
    assert {one: status for one, status in statuses.items() if status != 403} == {}


@pytest.mark.parametrize("scheme", ["Bearer", "Token"])
def test_the_key_of_an_application_opens_no_operation_and_no_page(rows: Rows, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {make_key(rows.tenant).secret}", "If-Match": "*"}
    client = Client()
    told = {
        (method, path): getattr(client, method)(filled(path, rows.addresses), headers=headers).status_code
        for method, path in operations()
    }
    assert {one: status for one, status in told.items() if status != 401} == {}
    pages_told = {client.get(fill(route, rows.addresses), headers=headers).status_code for route in ours()}
    assert pages_told <= {302, 405}


def test_every_page_has_a_strict_policy_and_is_kept_in_no_cache(rows: Rows, superuser: Client) -> None:
    wrong: list[tuple[str, str]] = []
    seen = 0
    for route in ours():
        answer = superuser.get(fill(route, rows.addresses))
        if answer.status_code != 200 or not answer.headers["Content-Type"].startswith("text/html"):
            continue
        seen += 1
        policy = answer.headers["Content-Security-Policy"]
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        page = b"" if answer.streaming else answer.content
        if "unsafe" in scripts or "*" in policy or "default-src 'self'" not in policy:
            wrong.append((route, policy))
        if (CHARTS in policy) != (b"plotly-cartesian" in page):
            wrong.append((route, "styles: " + policy))
        if b" style=" in page or b"<style" in page or b" onclick=" in page or b"javascript:" in page:
            wrong.append((route, "written in the page"))
        if "no-store" not in answer.headers.get("Cache-Control", "") or answer.headers["X-Frame-Options"] != "DENY":
            wrong.append((route, str(answer.headers)))
    assert seen > 10
    assert wrong == []


@pytest.mark.parametrize(
    "there", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "https:evil.example"]
)
def test_nobody_is_led_away(there: str) -> None:
    person("olga", platform_role="operator")
    client = Client()
    answer = client.post(f"/login/?next={there}", {"username": "olga@example.com", "password": PASSWORD, "next": there})
    assert answer.status_code == 302
    assert is_here(answer["Location"])
    spoken = client.post("/language/", {"language": "zh-hans", "next": there})
    assert is_here(spoken["Location"])
    kept = client.post("/views/save/", {"name": "mine", "table": "keys", "path": there, "query": "q=x"})
    assert is_here(kept["Location"])
    left = client.post("/logout/", {"next": there})
    assert is_here(left["Location"])


def is_here(address: str) -> bool:
    """A path of this site, as every browser reads it."""
    return address.startswith("/") and not address.startswith(("//", "/\\"))


def test_logging_in_makes_a_new_session() -> None:
    person("olga", platform_role="operator")
    client = Client()
    client.post("/language/", {"language": "zh-hans"})
    client.session["planted"] = "x"
    session = client.session
    session["planted"] = "x"
    session.save()
    client.cookies[settings.SESSION_COOKIE_NAME] = str(session.session_key)
    client.post("/login/", {"username": "olga@example.com", "password": PASSWORD})
    assert client.cookies[settings.SESSION_COOKIE_NAME].value != session.session_key
    assert client.cookies[settings.SESSION_COOKIE_NAME]["httponly"]
    fixed = Client()
    fixed.cookies[settings.SESSION_COOKIE_NAME] = str(session.session_key)
    assert fixed.get("/console/overview/").status_code == 302


def test_who_left_a_tenant_is_a_stranger_at_once() -> None:
    acme = tenant("acme", ada=TenantRole.OWNER)
    bert = create_user(email="bert@example.com", password=None, actor=SYSTEM)
    add_member(acme, bert, role=TenantRole.DEVELOPER, actor=SYSTEM)
    client = Client()
    client.force_login(bert)
    assert client.get("/t/acme/").status_code == 200
    remove_member(acme, bert.pk, standing=Standing("superuser", None), actor=SYSTEM)
    assert client.get("/t/acme/").status_code == 404
