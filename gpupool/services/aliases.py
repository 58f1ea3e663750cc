"""Other names of models at the door."""

from uuid import UUID

from django.db import transaction

from gpupool.models import Model, ModelAlias
from gpupool.services.catalogue import publish_model
from gpupool.services.names import take_name
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

_MOST = 50


@transaction.atomic
def create_alias(model_id: UUID, name: str, *, actor: Actor) -> ModelAlias:
    """Another name for a model, known at the doors within a second; a private model's is as private.

    Raises Model.DoesNotExist, and InvalidInput for a name that is none or is taken, by a model or an alias.
    """
    name = take_name(name)
    model = Model.objects.select_for_update().get(pk=model_id)
    if ModelAlias.objects.filter(model=model).count() >= _MOST:
        raise InvalidInput("name", f"A model has at most {_MOST} other names.")
    alias = ModelAlias.objects.create(name=name, model=model)
    record_audit(
        "model_alias.created",
        subject=alias,
        actor=actor,
        tenant_id=model.tenant_id,
        after={"name": name, "model": model.name},
    )
    publish_model(model)
    return alias


@transaction.atomic
def delete_alias(alias_id: UUID, *, actor: Actor) -> None:
    """Whoever still calls it is told that there is no such model. Raises ModelAlias.DoesNotExist."""
    alias = ModelAlias.objects.select_for_update(of=("self",)).select_related("model").get(pk=alias_id)
    record_audit(
        "model_alias.deleted",
        subject=alias,
        actor=actor,
        tenant_id=alias.model.tenant_id,
        before={"name": alias.name, "model": alias.model.name},
    )
    alias.delete()
    publish_model(alias.model)
