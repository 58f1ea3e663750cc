"""Keys in the portal: shown once, made and revoked by those who may, invisible across tenants."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from django.test import Client
from django.utils import timezone

from dashboard import context
from dashboard.views.portal import keys as keys_page
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import ApiKey, AuditEvent, Tenant, TenantRole, TenantState, User
from tests.dashboard.people import person, pool, tenant, usage

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return tenant(
        "acme",
        ada=TenantRole.OWNER,
        dev=TenantRole.DEVELOPER,
        vic=TenantRole.VIEWER,
        bill=TenantRole.BILLING,
    )


def log_in(client: Client, name: str) -> User:
    user = User.objects.get(email=f"{name}@example.com")
    client.force_login(user)
    return user


def secret_in(text: str) -> str:
    found = re.search(r'value="(sk-gh-[\w-]{20,})"', text)
    assert found, text
    return found.group(1)


def test_secret_is_shown_once_and_never_again(client: Client, acme: Tenant) -> None:
    log_in(client, "ada")
    response = client.post("/t/acme/keys/new/", {"name": "search-prod"})
    secret = secret_in(response.content.decode())
    assert "no-store" in response.headers["Cache-Control"]
    key = ApiKey.objects.get()
    assert key.digest == services.digest_secret(secret)
    for page in ("/t/acme/", "/t/acme/keys/", "/t/acme/keys/?state=all", "/t/acme/usage/", "/t/acme/keys/new/"):
        assert secret not in client.get(page).content.decode(), page
    assert secret not in str(list(AuditEvent.objects.values()))


def test_key_carries_what_the_form_says(client: Client, acme: Tenant) -> None:
    pool()
    user = log_in(client, "dev")
    client.post("/t/acme/keys/new/", {"name": "  eval  ", "expires": "30", "rpm_limit": "120", "models": ["qwen3-8b"]})
    key = ApiKey.objects.get()
    assert (key.name, key.rpm_limit, key.allowed_models, key.created_by_id) == ("eval", 120, ["qwen3-8b"], user.pk)
    assert key.expires_at is not None
    assert 29 <= (key.expires_at - timezone.now()).days <= 30


@pytest.mark.parametrize(("ticked", "keeps"), [({"keep_alive": "on"}, True), ({}, False)])
def test_key_says_whether_its_client_can_read_comments(
    client: Client, acme: Tenant, ticked: dict[str, str], keeps: bool
) -> None:
    log_in(client, "dev")
    assert "checked" in str(client.get("/t/acme/keys/new/").context["form"]["keep_alive"])
    client.post("/t/acme/keys/new/", {"name": "old-client", **ticked})
    assert ApiKey.objects.get().keep_alive is keeps


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": "a", "rpm_limit": "0"}, "rpm_limit"),
        ({"name": "a", "rpm_limit": "many"}, "rpm_limit"),
        ({"name": "a", "expires": "-1"}, "expires"),
        ({"name": "a", "models": ["not-granted"]}, "models"),
    ],
)
@pytest.mark.parametrize("granted", [True, False])
def test_bad_form_names_the_field_and_makes_nothing(
    client: Client, acme: Tenant, form: dict[str, str], field: str, granted: bool
) -> None:
    if granted:
        pool()
    log_in(client, "ada")
    response = client.post("/t/acme/keys/new/", form)
    assert response.status_code == 422
    assert field in response.context["form"].errors
    text = response.content.decode()
    assert f'id="id_{field}_error"' in text
    assert re.search(rf'aria-describedby="[^"]*id_{field}_error', text)  # where the field has the focus, it is told
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("name", ["vic", "bill"])
def test_viewer_and_billing_make_no_keys(client: Client, acme: Tenant, name: str) -> None:
    log_in(client, name)
    assert "/t/acme/keys/new/" not in client.get("/t/acme/keys/").content.decode()
    assert client.get("/t/acme/keys/new/").status_code == 403
    assert client.post("/t/acme/keys/new/", {"name": "mine"}).status_code == 403
    assert not ApiKey.objects.exists()


def test_read_only_platform_role_looks_but_makes_no_keys(client: Client, acme: Tenant) -> None:
    client.force_login(person("rita", platform_role="read_only"))
    assert client.get("/t/acme/keys/").status_code == 200
    assert client.post("/t/acme/keys/new/", {"name": "mine"}).status_code == 403


def test_suspended_tenant_makes_no_keys(client: Client, acme: Tenant) -> None:
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    log_in(client, "ada")
    assert "This tenant is suspended" in client.get("/t/acme/").content.decode()
    assert client.post("/t/acme/keys/new/", {"name": "mine"}).status_code == 403


def test_revoking_asks_first_and_says_what_happens(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    log_in(client, "ada")
    address = f"/t/acme/keys/{key.pk}/revoke/"
    asked = client.get(address).content.decode()
    assert "is answered with 401" in asked
    assert "cannot be undone" in asked
    key.refresh_from_db()
    assert key.revoked_at is None
    followed = client.post(address, follow=True)
    assert "is revoked" in followed.content.decode()
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_developer_revokes_own_keys_only(client: Client, acme: Tenant) -> None:
    dev = log_in(client, "dev")
    own = services.create_api_key(acme, name="own", actor=SYSTEM, created_by=dev.pk).key
    other = services.create_api_key(acme, name="other", actor=SYSTEM).key
    assert client.post(f"/t/acme/keys/{other.pk}/revoke/").status_code == 403
    assert client.post(f"/t/acme/keys/{own.pk}/revoke/").status_code == 302
    assert ApiKey.objects.get(pk=other.pk).revoked_at is None
    assert ApiKey.objects.get(pk=own.pk).revoked_at is not None


def test_rotating_shows_the_new_secret_once_and_says_how_long_the_old_one_works(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM, rpm_limit=7).key
    user = log_in(client, "ada")
    address = f"/t/acme/keys/{key.pk}/rotate/"
    assert address in client.get("/t/acme/keys/").content.decode()
    assert "both count as one" in client.get(address).content.decode()
    response = client.post(address, {"overlap": "3600"})
    text = response.content.decode()
    secret = secret_in(text)
    assert "works until" in text
    assert "no-store" in response.headers["Cache-Control"]
    new = ApiKey.objects.exclude(pk=key.pk).get()
    assert (new.digest, new.name, new.rpm_limit) == (services.digest_secret(secret), "search-prod", 7)
    key.refresh_from_db()
    assert key.expires_at is not None
    assert 3500 < (key.expires_at - timezone.now()).total_seconds() <= 3600
    assert AuditEvent.objects.get(action="api_key.rotated").actor_id == user.pk
    listed = client.get("/t/acme/keys/").content.decode()
    assert secret not in listed
    assert address not in listed  # rotated once, the new one is the next
    again = client.post(address, {"overlap": "3600"})
    assert again.status_code == 422
    assert "was rotated before" in again.content.decode()
    assert ApiKey.objects.count() == 2


def test_rotating_without_an_overlap_revokes_the_old_key(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    log_in(client, "ada")
    assert "is revoked" in client.post(f"/t/acme/keys/{key.pk}/rotate/", {"overlap": "0"}).content.decode()
    key.refresh_from_db()
    assert key.revoked_at is not None


@pytest.mark.parametrize("overlap", ["", "-1", "5", "long", "99999999"])
def test_no_other_overlap_is_taken(client: Client, acme: Tenant, overlap: str) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    log_in(client, "ada")
    response = client.post(f"/t/acme/keys/{key.pk}/rotate/", {"overlap": overlap})
    assert response.status_code == 422
    assert "overlap" in response.context["form"].errors
    assert ApiKey.objects.count() == 1


def test_a_leaked_key_is_revoked_and_listed_as_that_after_asking(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    log_in(client, "ada")
    address = f"/t/acme/keys/{key.pk}/leaked/"
    assert "is answered with 401" in client.get(address).content.decode()
    key.refresh_from_db()
    assert key.revoked_at is None
    assert "listed as leaked" in client.post(address, follow=True).content.decode()
    assert ApiKey.objects.filter(pk=key.pk, revoked_at__isnull=False, compromised_at__isnull=False).exists()
    assert AuditEvent.objects.filter(action="api_key.compromised").count() == 1
    listed = client.get("/t/acme/keys/?state=all").content.decode()
    assert ">Leaked<" in listed
    assert address not in listed


def test_a_revoked_key_can_turn_out_to_have_leaked(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    services.revoke_api_key(key.pk, actor=SYSTEM)
    log_in(client, "ada")
    address = f"/t/acme/keys/{key.pk}/leaked/"
    assert address in client.get("/t/acme/keys/?state=all").content.decode()
    assert "is revoked already" in client.get(address).content.decode()
    client.post(address)
    key.refresh_from_db()
    assert key.compromised_at is not None


@pytest.mark.parametrize(("name", "whose", "status"), [
    ("ada", "other", 200), ("dev", "own", 200), ("dev", "other", 403), ("vic", "other", 403), ("bill", "other", 403),
])  # fmt: skip
@pytest.mark.parametrize("page", ["rotate", "leaked"])
def test_keys_are_rotated_and_told_leaked_by_those_who_may(
    client: Client, acme: Tenant, name: str, whose: str, status: int, page: str
) -> None:
    maker = User.objects.get(email="dev@example.com").pk if whose == "own" else None
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM, created_by=maker).key
    log_in(client, name)
    address = f"/t/acme/keys/{key.pk}/{page}/"
    assert (address in client.get("/t/acme/keys/").content.decode()) == (status == 200)
    assert client.get(address).status_code == status
    if status == 403:
        assert client.post(address, {"overlap": "0"}).status_code == 403
        assert ApiKey.objects.get().revoked_at is None


def test_a_suspended_tenants_keys_are_not_rotated(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    log_in(client, "ada")
    assert f"{key.pk}/rotate/" not in client.get("/t/acme/keys/").content.decode()
    assert client.post(f"/t/acme/keys/{key.pk}/rotate/", {"overlap": "0"}).status_code == 403
    assert client.get(f"/t/acme/keys/{key.pk}/leaked/").status_code == 200


def test_other_tenants_do_not_exist(client: Client, acme: Tenant) -> None:
    tenant("bank", boris=TenantRole.OWNER)
    key = services.create_api_key(acme, name="search-prod", actor=SYSTEM).key
    log_in(client, "boris")
    for page in ("/t/acme/", "/t/acme/keys/", "/t/acme/keys/new/", "/t/acme/usage/", "/t/missing/"):
        assert client.get(page).status_code == 404, page
    assert client.post("/t/acme/keys/new/", {"name": "x"}).status_code == 404
    # The own tenant's address with the other tenant's key.
    for page in ("revoke", "rotate", "leaked"):
        assert client.get(f"/t/bank/keys/{key.pk}/{page}/").status_code == 404
        assert client.post(f"/t/bank/keys/{key.pk}/{page}/", {"overlap": "0"}).status_code == 404
    assert ApiKey.objects.get(pk=key.pk).revoked_at is None
    assert "Acme" not in client.get("/t/bank/").content.decode()


def test_forms_need_their_token(acme: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    log_in(client, "ada")
    response = client.post("/t/acme/keys/new/", {"name": "x"})
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()
    assert not ApiKey.objects.exists()


def test_htmx_gets_the_dialog_alone(client: Client, acme: Tenant) -> None:
    log_in(client, "ada")
    whole = client.get("/t/acme/keys/new/").content.decode()
    alone = client.get("/t/acme/keys/new/", headers={"HX-Request": "true"})
    assert "<html" in whole
    assert "<html" not in alone.content.decode()
    assert "HX-Request" in alone.headers["Vary"]


def test_revoked_keys_are_listed_only_when_asked_for(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="old-key", actor=SYSTEM).key
    services.revoke_api_key(key.pk, actor=SYSTEM)
    log_in(client, "ada")
    assert "old-key" not in client.get("/t/acme/keys/").content.decode()
    assert "old-key" in client.get("/t/acme/keys/?state=all").content.decode()


def test_key_names_cannot_carry_markup(client: Client, acme: Tenant) -> None:
    services.create_api_key(acme, name="<img src=x onerror=alert(1)>", actor=SYSTEM)
    log_in(client, "ada")
    assert "<img src=x" not in client.get("/t/acme/keys/").content.decode()


def _names(text: str) -> list[str]:
    return re.findall(r'class="main"\s+href="[^"]+">(key-\d+)<', text)


@pytest.mark.shows("U2", "U3")
def test_every_key_is_reached_page_by_page_with_the_true_total(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_page, "TABLE", replace(keys_page.TABLE, page_size=3))
    monkeypatch.setattr(context, "COUNT_LIMIT", 5)
    for number in range(8):
        services.create_api_key(acme, name=f"key-{number}", actor=SYSTEM)
    log_in(client, "ada")
    address, seen = "/t/acme/keys/", []
    for _ in range(3):
        text = client.get(address).content.decode()
        assert "8 rows" in text
        assert '<span class="count">5+</span>' in text
        seen += _names(text)
        services.create_api_key(acme, name=f"new-{len(seen)}", actor=SYSTEM)  # moves nothing on later pages
        ApiKey.objects.filter(name__startswith="new-").delete()
        older = re.search(r'rel="next"\s+href="(\?after=[^"]+)"', text)
        address = f"/t/acme/keys/{older.group(1)}" if older else ""
    assert seen == [f"key-{number}" for number in range(7, -1, -1)]
    assert address == ""


@pytest.mark.shows("U3")
def test_search_and_sort_are_over_all_keys_and_stay_in_the_address(
    client: Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_page, "TABLE", replace(keys_page.TABLE, page_size=2))
    for number in range(12):
        services.create_api_key(acme, name=f"key-{number}", actor=SYSTEM, rpm_limit=100 - number)
    log_in(client, "ada")
    text = client.get("/t/acme/keys/?q=KEY-1").content.decode()
    assert _names(text) == ["key-11", "key-10"]
    assert "3 rows" in text
    assert re.search(r'rel="next"\s+href="\?q=KEY-1&amp;after=', text)
    assert _names(client.get("/t/acme/keys/?sort=rpm").content.decode()) == ["key-11", "key-10"]
    assert _names(client.get("/t/acme/keys/?sort=-rpm").content.decode()) == ["key-0", "key-1"]
    assert _names(client.get("/t/acme/keys/?sort=name").content.decode()) == ["key-0", "key-1"]
    last_four = ApiKey.objects.get(name="key-0").last_four
    assert "key-0" in _names(client.get("/t/acme/keys/", {"q": last_four}).content.decode())
    assert "No key matches" in client.get("/t/acme/keys/?q=nothing").content.decode()


def test_keys_come_as_csv_without_formulas_or_digests(client: Client, acme: Tenant) -> None:
    for name in ("plain", "=1+1"):
        services.create_api_key(acme, name=name, actor=SYSTEM)
    log_in(client, "vic")
    lines = b"".join(client.get("/t/acme/keys/?format=csv")).decode().splitlines()
    assert lines[0].startswith("name,masked,state")
    assert len(lines) == 3
    assert any(line.startswith("'=1+1,") for line in lines)
    assert not any(key.digest in line for key in ApiKey.objects.all() for line in lines)


def test_a_key_has_a_page_that_says_what_it_is_and_used(client: Client, acme: Tenant) -> None:
    made = services.create_api_key(acme, name="search-prod", actor=SYSTEM, rpm_limit=7).key
    used = usage(acme, at=timezone.now(), tokens=500)
    log_in(client, "vic")
    text = client.get(f"/t/acme/keys/{made.pk}/").content.decode()
    assert "Not used in these days" in text
    assert "Requests / a minute" in text
    page = client.get(f"/t/acme/keys/{used.key_id}/")
    assert page.context["usage"].tokens == 1000
    assert sum(tokens for _, tokens in page.context["by_day"]) == 1000
    bank = tenant("bank", boris=TenantRole.OWNER)
    log_in(client, "boris")
    assert client.get(f"/t/{bank.slug}/keys/{made.pk}/").status_code == 404


@pytest.mark.parametrize(
    "query", ["q=%00", "after=%00", "after=abc", "state=%00", "sort=%00", "q=" + "x" * 5000, "q=%ED%A0%80"]
)
def test_no_address_breaks_the_list(client: Client, acme: Tenant, query: str) -> None:
    log_in(client, "ada")
    assert client.get(f"/t/acme/keys/?{query}").status_code == 200


def test_an_expiry_at_the_end_of_time_is_shown_all_the_same(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="far", actor=SYSTEM).key
    ApiKey.objects.filter(pk=key.pk).update(expires_at=datetime(9999, 12, 31, 23, 59, tzinfo=UTC))
    log_in(client, "ada")
    assert "31 Dec 9999" in client.get("/t/acme/keys/").content.decode()


def test_members_of_a_suspended_tenant_are_told_why_they_make_no_keys(client: Client, acme: Tenant) -> None:
    key = services.create_api_key(acme, name="old", actor=SYSTEM).key
    services.set_tenant_state(acme.pk, TenantState.SUSPENDED, actor=SYSTEM)
    log_in(client, "ada")
    text = client.get("/t/acme/keys/").content.decode()
    assert "This tenant is suspended" in text
    assert "Your role may look at keys" not in text
    assert f"{key.pk}/revoke/" in text


def test_fragment_of_someone_logged_out_sends_the_page_to_the_login(client: Client, acme: Tenant) -> None:
    response = client.get("/t/acme/keys/new/", headers={"HX-Request": "true"})
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["HX-Redirect"] == "/login/?next=/t/acme/keys/new/"


@pytest.mark.parametrize(
    ("target", "page", "leads"),
    [
        ("div#first-request", "http://testserver/t/acme/?tab=python", "/t/acme/%3Ftab%3Dpython"),
        ("dialog#sheet", "http://testserver/t/acme/", "/t/acme/first/"),
        ("div#first-request", "https://elsewhere.example/", "/t/acme/first/"),
    ],
)
def test_part_of_a_page_leads_back_to_the_page_after_the_login(
    client: Client, acme: Tenant, target: str, page: str, leads: str
) -> None:
    asked = {"HX-Request": "true", "HX-Target": target, "HX-Current-URL": page}
    response = client.get("/t/acme/first/", headers=asked)
    assert response.headers["HX-Redirect"] == f"/login/?next={leads}"


@pytest.mark.parametrize("page", ["/t/acme/", "/t/acme/keys/", "/t/acme/usage/"])
def test_pages_are_kept_in_no_cache(client: Client, acme: Tenant, page: str) -> None:
    log_in(client, "ada")
    assert "no-store" in client.get(page).headers["Cache-Control"]
