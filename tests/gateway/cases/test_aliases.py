"""Other names of models at both doors: echoed (G24), counted by the model's own name, and as private as it is (G31)."""

import json
from itertools import count
from typing import Final
from uuid import UUID

import pytest
from django.db import transaction

from bench.house import wait_until
from bench.rows import Key, make_key, make_tenant
from core.epochs import Section, bump_epoch
from gpupool.models import Instance, Model
from gpupool.services.aliases import create_alias, delete_alias
from gpupool.services.catalogue import create_model
from tenants.actor import SYSTEM
from tenants.services import create_api_key
from tenants.services.limits import create_limit
from tests.gateway.cases.desk import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SERVED, Answer, Case, Served
from tests.gateway.cases.test_names import is_told_nowhere, names_in, seen_alike

_numbers: Final = count(1)


def alias_of(case: Case, served: Served) -> str:
    """A name that no grant is about; both doors know it when this returns."""
    name = f"other-{next(_numbers)}"
    create_alias(Model.objects.get(name=served.name).pk, name, actor=SYSTEM)
    until_known(case, name)
    return name


def until_known(case: Case, name: str, *, status: int = 200) -> None:
    for process, client in case.house.clients.items():
        wait_until(
            lambda client=client: client.get(f"/v1/models/{name}", headers=case.headers()).status_code == status,  # type: ignore[misc]  # mypy infers no type of a lambda's defaults
            f"{status} for {name} at the {process}",
        )


@pytest.mark.shows("G24")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_g24_an_alias_is_echoed_and_the_ledger_has_the_models_name(case: Case, path: str) -> None:
    served = case.serve(case.says("A", "B"))
    alias = alias_of(case, served)
    answer = case.ask(alias, path)
    assert answer.status == 200
    assert served.received[0].json["model"] == SERVED
    assert set(names_in(answer.events if case.streamed else answer.json)) == {alias}
    is_told_nowhere(case, answer, served.doubles[0].port)
    assert served.name not in answer.body.decode() + repr(answer.headers)
    row = case.row(answer)
    assert (row.model, row.instance_id) == (served.name, served.instances[0].pk)


def test_keys_and_limits_go_by_the_models_own_name(whole: Case) -> None:
    served = whole.serve(whole.says("A"))
    alias = alias_of(whole, served)
    may = create_api_key(whole.house.tenant, name="own name", allowed_models=[served.name], actor=SYSTEM)
    may_not = create_api_key(whole.house.tenant, name="other name", allowed_models=[alias], actor=SYSTEM)
    assert whole.ask(alias, key=Key(may.key.pk, may.secret)).status == 200
    assert whole.ask(alias, key=Key(may_not.key.pk, may_not.secret)).status == 404
    limit = create_limit(
        metric="requests", window="minute", amount=1, tenant=whole.house.tenant, model=served.name, actor=SYSTEM
    )
    wait_until(lambda: whole.ask(alias).status == 429, "the model's limit holds its other name back")
    assert whole.ask(served.name).status == 429
    assert limit.model == served.name


def listed(case: Case, key: Key) -> set[str]:
    answer = case.client.get("/v1/models", headers=case.headers(key)).json()
    return {one["id"] for one in answer["data"]}


@pytest.mark.shows("G31")
def test_g31_an_alias_is_listed_to_those_who_may_use_the_model_and_to_nobody_else(whole: Case) -> None:
    tenant = make_tenant(f"own-{next(_numbers)}-{whole.door}", models=("*",))
    theirs = make_key(tenant, "theirs")
    private = f"case-private-{next(_numbers)}-{whole.door}"
    create_model(private, tenant_id=tenant.pk, actor=SYSTEM)
    whole.serve(whole.says("A"), name="private", exactly=private)
    alias = f"case-secret-{next(_numbers)}-{whole.door}"
    row = create_alias(Model.objects.get(name=private).pk, alias, actor=SYSTEM)
    wait_until(lambda: alias in listed(whole, theirs), "the tenant's list has the alias")
    assert {alias, private} <= listed(whole, theirs)
    assert not {alias, private} & listed(whole, whole.house.key)
    unknown, theirs_told = (_about(whole, name) for name in (f"absent-{alias}", alias))
    assert unknown.status == 404
    assert seen_alike(unknown) == seen_alike(theirs_told)
    assert whole.ask(alias, key=theirs).status == 200
    delete_alias(row.pk, actor=SYSTEM)
    wait_until(lambda: whole.ask(alias, key=theirs).status == 404, "the alias is gone")
    assert whole.ask(private, key=theirs).status == 200


def _about(case: Case, model: str) -> Answer:
    return case.ask(model, content=json.dumps(case.body(model)).encode())


@pytest.mark.shows("R144")
def test_an_instance_of_one_tenant_takes_no_other_tenants_requests(whole: Case) -> None:
    tenant = make_tenant(f"bound-{next(_numbers)}-{whole.door}", models=("case-*",))
    theirs = make_key(tenant, "theirs")
    served = whole.serve(whole.says("A"), endpoints=2)
    own = served.instances[0]
    _bind(own, tenant.pk)
    wait_until(  # once could be chance
        lambda: all(_asked(whole, served, whole.house.key) == [0, 1] for _ in range(8)), "others are sent past it"
    )
    for _ in range(6):
        assert _asked(whole, served, whole.house.key) == [0, 1]
        assert _asked(whole, served, theirs) == [1, 0]


def _bind(instance: Instance, tenant_id: UUID) -> None:
    """As the pool binds one: written past its services, and told to the doors."""
    with transaction.atomic():
        Instance.objects.filter(pk=instance.pk).update(tenant_id=tenant_id)
        bump_epoch(Section.ENDPOINTS, instance.pk)


def _asked(case: Case, served: Served, key: Key) -> list[int]:
    """How many of one more request each engine got."""
    before = [len(double.received) for double in served.doubles]
    assert case.ask(served.name, key=key).status == 200
    return [len(double.received) - had for double, had in zip(served.doubles, before, strict=True)]
