"""The key behind the playground: whose it is, how long it lives, and that nobody sees it."""

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from gpupool.models import ModelVersion
from tenants import services
from tenants.actor import SYSTEM, user_actor
from tenants.models import ApiKey, AuditEvent, Tenant, TenantRole, User
from tenants.policies.pricing import PriceTag
from tenants.services import playground
from tenants.services.alerts import tell_expiring_keys
from tenants.services.playground import LEAST_LEFT, LIFE, playground_secret
from tenants.services.prices import set_price
from tests.dashboard.people import person as make_person
from tests.dashboard.people import pool, tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return tenant("acme", ada=TenantRole.OWNER, dev=TenantRole.DEVELOPER)


def person(name: str) -> User:
    return User.objects.get(email=f"{name}@example.com")


def secret_of(acme: Tenant, name: str, *, minutes: float = 0) -> str:
    return playground_secret(
        acme, person(name), now=timezone.now() + timedelta(minutes=minutes), actor=user_actor(person(name).pk)
    )


def test_one_key_a_person_whose_secret_is_the_same_for_a_while_and_then_another(acme: Tenant) -> None:
    first = secret_of(acme, "ada")
    assert secret_of(acme, "ada", minutes=30) == first
    assert secret_of(acme, "dev") != first
    later = secret_of(acme, "ada", minutes=(LIFE - LEAST_LEFT).total_seconds() / 60 + 1)
    assert later != first
    key = ApiKey.objects.get(created_by=person("ada"))
    assert key.digest == services.digest_secret(later)
    assert (key.tenant, key.scopes, key.purpose) == (acme, ["infer"], "playground")
    told = AuditEvent.objects.filter(action="playground.opened", subject_id=key.pk)
    assert [one.after["renewed"] for one in told.order_by("pk")] == [False, True]
    assert {one.actor_id for one in told} == {person("ada").pk}


def test_two_questions_at_once_are_asked_with_one_secret(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    first = secret_of(acme, "ada")
    found = playground._find
    looks = iter([None])  # the second looked before the first had made the key
    monkeypatch.setattr(playground, "_find", lambda *args, **more: next(looks, found(*args, **more)))
    assert secret_of(acme, "ada") == first
    assert AuditEvent.objects.filter(action="playground.opened").count() == 1


def test_the_secret_is_in_no_table_and_another_installation_would_make_another(
    acme: Tenant, settings: Settings
) -> None:
    secret = secret_of(acme, "ada")
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT count(*) FROM "{table}" AS t WHERE t::text LIKE %s', [f"%{secret}%"])
            assert cursor.fetchone() == (0,), table
    settings.SECRET_KEY = "another-" + "0" * 50
    assert secret_of(acme, "ada") != secret  # made anew, because the old one no longer comes out


def test_a_key_that_was_revoked_or_changed_is_made_anew(acme: Tenant) -> None:
    first = secret_of(acme, "ada")
    key = ApiKey.objects.get()
    services.revoke_api_key(key.pk, actor=SYSTEM)
    assert secret_of(acme, "ada") != first
    live = ApiKey.objects.get(revoked_at=None)
    services.change_api_key(live.pk, actor=SYSTEM, expires_at=timezone.now() + timedelta(days=9))
    renewed = secret_of(acme, "ada")
    live.refresh_from_db()
    assert live.digest == services.digest_secret(renewed)
    assert live.expires_at is not None
    assert live.expires_at < timezone.now() + LIFE + timedelta(minutes=1)


def test_nobody_is_warned_of_its_end_and_nobody_gets_it_by_rotating(client: Client, acme: Tenant) -> None:
    secret_of(acme, "ada")
    key = ApiKey.objects.get()
    assert tell_expiring_keys(now=timezone.now()) == 0
    with pytest.raises(services.Conflict):
        services.rotate_api_key(key.pk, overlap=timedelta(hours=1), actor=SYSTEM)
    client.force_login(person("ada"))
    listed = client.get("/t/acme/keys/").content.decode()
    assert "Renews itself" in listed
    assert f"{key.pk}/rotate/" not in listed
    assert client.post(f"/t/acme/keys/{key.pk}/rotate/", {"overlap": "0"}).status_code == 422
    assert "No browser and no application has it" in client.get(f"/t/acme/keys/{key.pk}/").content.decode()


def test_a_question_without_the_forms_token_is_refused_before_anything_is_made(acme: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(person("ada"))
    body = json.dumps({"model": "qwen3-8b", "messages": []})
    asked = client.post("/t/acme/playground/chat/", body, content_type="application/json")
    assert asked.status_code == 403
    assert not ApiKey.objects.exists()
    assert client.get("/t/acme/playground/chat/").status_code == 405


def test_a_process_that_serves_no_inference_says_so_as_the_api_does(client: Client, acme: Tenant) -> None:
    client.force_login(person("dev"))
    asked = client.post("/t/acme/playground/chat/", "{}", content_type="application/json")
    assert asked.status_code == 503
    assert asked.json()["error"]["message"] == "This process does not serve inference."


def test_the_page_offers_granted_models_with_their_prices_and_holds_no_key(client: Client, acme: Tenant) -> None:
    pool()
    client.force_login(person("dev"))
    secret_of(acme, "dev")
    page = client.get("/t/acme/playground/?model=qwen3-8b")
    assert page.context["chosen"] == "qwen3-8b"
    assert page.context["facts"]["prices"] == {"qwen3-8b": None}
    assert page.context["facts"]["base_url"] == f"{settings.GATEHOUSE.public_relay_url}/v1"
    assert "sk-gh-" not in page.content.decode()
    assert page.context["facts"]["by_version"] == []
    services.grant_model(acme, model_pattern="*", effect="deny", actor=SYSTEM)
    assert "No model is granted" in client.get("/t/acme/playground/").content.decode()


def test_no_cost_is_reckoned_where_it_hangs_on_the_version_that_answers(client: Client, acme: Tenant) -> None:
    version = pool().version
    others = ModelVersion.objects.create(
        model=version.model, name="banks", engine="vllm", served_name="q", state="serving", tenant_id=tenant("bank").pk
    )
    set_price("qwen3-8b", PriceTag(input_micros=5), actor=SYSTEM)
    set_price("qwen3-8b", PriceTag(input_micros=9), version_id=others.pk, actor=SYSTEM)
    client.force_login(person("dev"))
    assert client.get("/t/acme/playground/").context["facts"]["by_version"] == []
    set_price("qwen3-8b", PriceTag(input_micros=7), version_id=version.pk, actor=SYSTEM)
    assert client.get("/t/acme/playground/").context["facts"]["by_version"] == ["qwen3-8b"]


def test_who_looks_as_a_member_is_told_why_nothing_can_be_asked(client: Client, acme: Tenant) -> None:
    pool()
    client.force_login(make_person("olga", platform_role="operator"))
    member = person("dev")
    client.post("/console/tenants/acme/view-as/", {"member": str(member.pk)})
    words = client.get("/t/acme/playground/").context["facts"]["words"]
    assert words["session"] == "You are looking as Dev: nothing can be changed until you end it."
