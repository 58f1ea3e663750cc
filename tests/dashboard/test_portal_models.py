"""The catalogue as a tenant sees it."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from gpupool.models import Instance, Model, ModelVersion
from gpupool.services.aliases import create_alias
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import Grant, Tenant, TenantRole, User
from tenants.policies.pricing import PriceTag
from tenants.services.prices import set_price
from tests.dashboard.people import tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(client: Client) -> Tenant:
    made = tenant("acme", ada=TenantRole.OWNER)
    Grant.objects.all().delete()
    client.force_login(User.objects.get(email="ada@example.com"))
    return made


def serve(
    name: str, *, state: str | None = None, owner: Tenant | None = None, own_version: Tenant | None = None
) -> Model:
    """A model with a version that serves, and one instance in `state`."""
    model = Model.objects.create(name=name, tenant_id=owner.pk if owner else None)
    version = ModelVersion.objects.create(
        model=model,
        name="v1",
        engine="vllm",
        served_name=name,
        artefact_uri="file:///m",
        state="serving",
        tenant_id=own_version.pk if own_version else None,
    )
    if state:
        Instance.objects.create(version=version, engine="vllm", state=state, host="10.0.0.1", port=1)
    return model


def shown(client: Client, query: str = "") -> dict[str, tuple[str, bool]]:
    lines = client.get(f"/t/acme/models/?{query}").context["rows"]
    return {line.model.name: (line.state, line.access.granted) for line in lines}


def test_a_model_that_one_may_still_ask_is_granted_though_something_else_of_it_is_denied(
    client: Client, acme: Tenant
) -> None:
    serve("chatty", state="ready")
    services.grant_model(acme, model_pattern="*", actions=["infer", "embed"], actor=SYSTEM)
    services.grant_model(acme, model_pattern="chatty", actions=["embed"], effect="deny", actor=SYSTEM)
    assert shown(client) == {"chatty": ("ready", True)}
    assert client.get("/t/acme/playground/").context["chosen"] == "chatty"


def test_granted_and_askable_models_are_told_and_others_own_are_not(client: Client, acme: Tenant) -> None:
    bank = tenant("bank")
    serve("ready", state="ready")
    serve("sleeper", state="asleep")
    serve("coming", state="loading")
    serve("off")
    serve("mine", state="ready", owner=acme)
    serve("secret-of-bank", state="ready", owner=bank)
    serve("served-by-banks-version", state="ready", own_version=bank)
    serve("forbidden-one", state="ready")
    Model.objects.create(name="draft")
    for pattern in ("ready", "sleep*", "mine"):
        services.grant_model(acme, model_pattern=pattern, actor=SYSTEM)
    services.grant_model(acme, model_pattern="forbidden-*", effect="deny", actor=SYSTEM)
    assert shown(client) == {
        "coming": ("starting", False),
        "mine": ("ready", True),
        "off": ("off", False),
        "ready": ("ready", True),
        "sleeper": ("asleep", True),
    }
    assert set(shown(client, "access=granted")) == {"mine", "ready", "sleeper"}
    assert set(shown(client, "access=askable")) == {"coming", "off"}
    assert set(shown(client, "q=EEP")) == {"sleeper"}
    assert "requests are answered with 503 until an operator wakes it" in client.get("/t/acme/models/").content.decode()
    for text in (client.get("/t/acme/models/").content, b"".join(client.get("/t/acme/models/?format=csv"))):
        assert b"bank" not in text.lower()
        assert b"forbidden-one" not in text


def test_what_a_model_costs_until_when_it_is_granted_and_its_other_names_are_told(client: Client, acme: Tenant) -> None:
    model = serve("big", state="ready")
    create_alias(model.pk, "latest", actor=SYSTEM)
    services.grant_model(acme, model_pattern="b*", actor=SYSTEM, expires_at=timezone.now() + timedelta(days=5))
    set_price("big", PriceTag(input_micros=500_000, cached_input_micros=100_000, output_micros=2_000_000), actor=SYSTEM)
    text = client.get("/t/acme/models/").content.decode()
    for told in ("0.50 USD", "0.10 USD cached", "2.00 USD", "latest", "embed, infer"):
        assert told in text, told
    (line,) = client.get("/t/acme/models/?q=latest").context["rows"]
    assert line.access.until is not None


def test_what_was_asked_for_is_not_offered_again(client: Client, acme: Tenant) -> None:
    serve("big")
    address = "/t/acme/models/ask/?model=big"
    assert address in client.get("/t/acme/models/").content.decode()
    assert 'value="big"' in client.get(address).content.decode()
    client.post("/t/acme/models/ask/", {"model": "big", "reason": "To try it."})
    text = client.get("/t/acme/models/").content.decode()
    assert address not in text
    assert "Asked for" in text


def test_instances_of_an_engine_that_is_switched_off_answer_nothing(client: Client, acme: Tenant) -> None:
    from gpupool.models import EngineSwitch

    serve("big", state="ready")
    EngineSwitch.objects.create(name="vllm", enabled=False)
    assert shown(client) == {"big": ("off", False)}


def test_queries_do_not_grow_with_the_catalogue(
    client: Client, acme: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for times in range(2):
        for number in range(15):
            services.grant_model(acme, model_pattern=f"m{times}-{number}", actor=SYSTEM)
            serve(f"m{times}-{number}", state="ready")
        with django_assert_max_num_queries(22):
            client.get("/t/acme/models/")
