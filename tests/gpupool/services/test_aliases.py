"""Other names of models, and adapters: whose they are, and what they may be called."""

import threading
from typing import Any

import pytest
from django.db import connection

from core.epochs import Section, current_epoch
from core.refusals import Conflict
from gpupool.models import Adapter, ModelAlias
from gpupool.selectors import list_models, owners_of_private_models
from gpupool.services.adapters import retire_adapter
from gpupool.services.aliases import create_alias, delete_alias
from gpupool.services.catalogue import create_model, create_version
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.factories import make_adapter, make_model, make_tenant, make_version


@pytest.mark.django_db
def test_an_alias_is_told_to_the_doors_with_its_model() -> None:
    model = make_model("qwen3-8b")
    make_version(model)
    before = current_epoch(Section.MODELS)
    alias = create_alias(model.pk, " qwen-latest ", actor=SYSTEM)
    assert current_epoch(Section.MODELS) > before
    (entry,) = list_models()
    assert (entry.name, entry.aliases) == ("qwen3-8b", ("qwen-latest",))
    delete_alias(alias.pk, actor=SYSTEM)
    assert list_models()[0].aliases == ()
    assert sorted(AuditEvent.objects.filter(action__startswith="model_alias.").values_list("action", flat=True)) == [
        "model_alias.created",
        "model_alias.deleted",
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", "a*", "x" * 201, "a\nb", "taken", "other"])
def test_a_name_is_one_models_whether_its_own_or_another(name: str) -> None:
    model = make_model("taken")
    create_alias(make_model("second").pk, "other", actor=SYSTEM)
    with pytest.raises(InvalidInput) as refused:
        create_alias(model.pk, name, actor=SYSTEM)
    assert refused.value.field == "name"


@pytest.mark.django_db
def test_a_model_is_not_called_as_another_ones_alias() -> None:
    create_alias(make_model("first").pk, "latest", actor=SYSTEM)
    with pytest.raises(InvalidInput, match="another name of a model"):
        create_model("latest", actor=SYSTEM)


@pytest.mark.django_db(transaction=True)
def test_of_a_model_and_an_alias_that_want_one_name_at_once_one_has_it() -> None:
    model = make_model("first")
    gate, told = threading.Barrier(6), []

    def one(alias: bool) -> None:
        gate.wait()
        try:
            if alias:
                create_alias(model.pk, "latest", actor=SYSTEM)
            else:
                create_model("latest", actor=SYSTEM)
            told.append("made")
        except InvalidInput as error:
            told.append(error.field)
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["made"] + ["name"] * 5


@pytest.mark.django_db
@pytest.mark.shows("G31")
def test_an_alias_of_a_private_model_is_as_private() -> None:
    tenant = make_tenant()
    model = make_model("secret", tenant_id=tenant.pk)
    create_alias(model.pk, "hidden", actor=SYSTEM)
    assert owners_of_private_models() == {"secret": tenant.pk, "hidden": tenant.pk}


@pytest.mark.django_db
def test_a_model_that_only_tenants_own_versions_serve_is_theirs_alone() -> None:
    model, tenant = make_model("shared"), make_tenant()
    create_version(model, name="own", engine="vllm", tenant_id=tenant.pk, actor=SYSTEM)
    assert list_models()[0].only_tenants == {tenant.pk}
    make_version(model)
    assert list_models()[0].only_tenants == frozenset()


# Adapters


def a_version(**arguments: Any) -> Any:
    return create_version(
        make_model(), name="v1", engine="vllm", artefact_uri="file:///models/m/config.json", memory_bytes=1,
        engine_args=arguments, actor=SYSTEM,
    )  # fmt: skip


@pytest.mark.django_db
def test_an_adapter_is_registered_for_its_version_and_retired_once() -> None:
    adapter = make_adapter(a_version(lora=True, max_lora_rank=16), rank=16, target_modules=["v_proj", "q_proj"])
    assert (adapter.rank, adapter.target_modules, adapter.state) == (16, ["q_proj", "v_proj"], "stored")
    assert retire_adapter(adapter.pk, actor=SYSTEM).state == "retired"
    with pytest.raises(Conflict, match="retired already"):
        retire_adapter(adapter.pk, actor=SYSTEM)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "change", "field"),
    [
        ({"lora": True, "max_lora_rank": 16}, {"rank": 17}, "rank"),
        ({"lora": True}, {"rank": 65}, "rank"),  # vLLM's own limit where none is said
        ({}, {}, "version"),  # the engine is not started for adapters
        ({"lora": True}, {"rank": 0}, "rank"),
        ({"lora": True}, {"sha256": "x"}, "sha256"),
        ({"lora": True}, {"size_bytes": 0}, "size_bytes"),
        ({"lora": True}, {"alpha": float("nan")}, "alpha"),
        ({"lora": True}, {"artefact_uri": "s3://bucket"}, "artefact_uri"),
        ({"lora": True}, {"name": ""}, "name"),
        ({"lora": True}, {"target_modules": [""]}, "target_modules"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused(
    arguments: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        make_adapter(a_version(**arguments), **change)
    assert refused.value.field == field
    assert not Adapter.objects.exists()


@pytest.mark.django_db
def test_an_adapter_of_a_private_model_is_that_tenants() -> None:
    mine, other = make_tenant(), make_tenant()
    version = make_version(make_model(tenant_id=mine.pk))
    assert make_adapter(version).tenant_id == mine.pk
    with pytest.raises(InvalidInput) as refused:
        make_adapter(version, tenant_id=other.pk)
    assert refused.value.field == "tenant_id"


@pytest.mark.django_db
def test_a_name_of_an_adapter_is_taken_once() -> None:
    version = make_version(make_model())
    make_adapter(version, name="mine")
    with pytest.raises(InvalidInput, match="of that name already"):
        make_adapter(version, name="mine")
    assert ModelAlias.objects.count() == 0
